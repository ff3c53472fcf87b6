"""Lines of workload files, with errors that name the file and the line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tokenloom.errors import ConfigError
from tokenloom.settings_validation import located_fault

__all__ = ["WorkloadLine", "parse_line", "read_lines"]


class WorkloadLine(BaseModel):
    """Base of what a line of JSON must hold; other fields, of whoever made the file, are no fault."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


_Line = TypeVar("_Line", bound=WorkloadLine)


def read_lines(path: Path, key: str = "workload") -> Iterator[tuple[int, str]]:
    """Lines that are not empty, with their numbers; `key` names the file in errors.

    Raises:
        ConfigError: the file cannot be read, or is not text.
    """
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield number, text
    except OSError as error:
        raise ConfigError(f"{key}={path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{key}={path} is not text: {error}") from error


def parse_line(path: Path, number: int, text: str, kind: type[_Line], key: str = "workload") -> _Line:
    """Reads a line of JSON; `key` names the file in errors. Raises ConfigError with the first thing that is wrong."""
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        fault = located_fault(error.errors(include_url=False)[0], "the line")
        raise ConfigError(f"{key}={path}: line {number}: {fault}") from error
