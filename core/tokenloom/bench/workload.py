"""Workload files: a JSON list of {"prompt": [token ids], "max_tokens": n}."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from tokenloom.errors import ConfigError
from tokenloom.settings_base import Settings
from tokenloom.settings_validation import located_fault

__all__ = ["WorkloadItem", "read_workload"]


class WorkloadItem(Settings):
    """One request of a workload; all arrive at once."""

    prompt: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)]


def read_workload(path: Path) -> list[WorkloadItem]:
    """Reads a workload. Raises ConfigError naming the file, and the item and field at fault."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"workload={path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"workload={path} is not JSON: {error}") from error
    try:
        items = TypeAdapter(list[WorkloadItem]).validate_python(data)
    except ValidationError as error:
        fault = located_fault(error.errors(include_url=False)[0], "the file")
        raise ConfigError(
            f'workload={path}: {fault}; expected a list of {{"prompt": [ids], "max_tokens": n}}'
        ) from error
    if not items:
        raise ConfigError(f"workload={path} has no requests")
    return items
