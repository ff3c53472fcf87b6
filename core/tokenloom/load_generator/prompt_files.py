"""Files of prompts as text: lines, and JSON lines such as those of Spec-Bench."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from tokenloom.errors import ConfigError
from tokenloom.load_generator.workloads import PlannedRequest
from tokenloom.simulation.timed_request import TimedRequest
from tokenloom.simulation.trace_files import read_requests
from tokenloom.simulation.workload_lines import WorkloadLine, parse_line, read_lines

__all__ = ["read_planned_requests"]

_MOONCAKE_WORD = '"input_length"'


class _PromptLine(WorkloadLine):
    """One line: a prompt, or the turns of a conversation, of which the first one is sent."""

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
        texts = ((text.strip(), output_tokens) for _, text in read_lines(path))
    elif path.suffix == ".jsonl" and _MOONCAKE_WORD not in next(read_lines(path), (0, ""))[1]:
        parsed = (parse_line(path, number, text, _PromptLine) for number, text in read_lines(path))
        texts = ((line.text, line.max_tokens or output_tokens) for line in parsed)
    else:
        return [PlannedRequest(timed) for timed in read_requests(path, limit=limit, seed=seed)]
    planned = [PlannedRequest(TimedRequest(0.0, 0, max_tokens), text) for text, max_tokens in islice(texts, limit)]
    if not planned:
        raise ConfigError(f"workload={path} has no requests")
    return planned
