"""The command line: `tokenloom COMMAND ...`. Each command is a module of its own, imported when it is called."""

from __future__ import annotations

from tokenloom.cli.main import main

__all__ = ["main"]
