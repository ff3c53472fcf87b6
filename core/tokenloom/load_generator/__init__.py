"""Load for any OpenAI-compatible server, and what it measured. Imports no torch."""
