"""Files of prompts as text: lines, and JSON lines such as those of Spec-Bench."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tokenloom.errors import ConfigError
from tokenloom.load_generator.workloads import PlannedRequest
from tokenloom.settings_validation import located_fault
from tokenloom.simulation.timed_request import TimedRequest
from tokenloom.simulation.trace_files import read_requests

__all__ = ["read_planned_requests"]

_MOONCAKE_WORD = '"input_length"'


class _PromptLine(BaseModel):
    """One line: a prompt, or the turns of a conversation, of which the first one is sent."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="ignore", strict=True)

    prompt: Annotated[str, Field(min_length=1)] | None = None
    turns: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _has_text(self) -> _PromptLine:
        if (self.prompt is None) == (self.turns is None):
            raise ValueError("expected either a prompt or turns")
        return self

    @property
    def text(self) -> str:
        return self.prompt if self.prompt is not None else (self.turns or [""])[0]


def read_planned_requests(path: Path, *, limit: int | None, seed: int, output_tokens: int) -> list[PlannedRequest]:
    """Reads the requests of a file; those without arrivals come all at once.

    Args:
        path: .csv (Azure), .jsonl (Mooncake, or {"prompt": text} or {"turns": [text, ...]}), .json (`tokenloom bench`),
            .txt (a prompt in each line).
        limit: only the first so many.
        seed: places the arrivals of a Mooncake trace within their bucket.
        output_tokens: what text prompts ask for that do not say.

    Raises:
        ConfigError: the file cannot be read; names the file, the line and what is wrong.
    """
    if path.suffix == ".txt":
        texts = ((text.strip(), output_tokens) for _, text in _lines(path))
    elif path.suffix == ".jsonl" and _MOONCAKE_WORD not in next(_lines(path), (0, ""))[1]:
        parsed = (_parse(path, number, text) for number, text in _lines(path))
        texts = ((line.text, line.max_tokens or output_tokens) for line in parsed)
    else:
        return [PlannedRequest(timed) for timed in read_requests(path, limit=limit, seed=seed)]
    planned = [PlannedRequest(TimedRequest(0.0, 0, max_tokens), text) for text, max_tokens in islice(texts, limit)]
    if not planned:
        raise ConfigError(f"workload={path} has no requests")
    return planned


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, with their numbers."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield number, text
    except OSError as error:
        raise ConfigError(f"workload={path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"workload={path} is not text: {error}") from error


def _parse(path: Path, number: int, text: str) -> _PromptLine:
    try:
        return _PromptLine.model_validate_json(text)
    except ValidationError as error:
        fault = located_fault(error.errors(include_url=False)[0], "the line")
        raise ConfigError(f"workload={path}: line {number}: {fault}") from error
