"""Reads the JSON files of a Hugging Face folder. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenloom.errors import ModelError

__all__ = ["read_json"]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object. Raises ModelError naming the file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} must hold a JSON object, got {type(values).__name__}")
    return values
