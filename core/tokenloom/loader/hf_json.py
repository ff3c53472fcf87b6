"""Reads the JSON files of a Hugging Face folder, as the text layer does. Imports no torch."""

from tokenloom.json_file import read_json

__all__ = ["read_json"]
