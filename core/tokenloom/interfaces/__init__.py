"""The contracts between the core and its plugins, one a module. Start with `contract.py`, then the kind at hand."""
