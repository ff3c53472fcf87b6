"""Prompts by category: JSON lines of {"category": name, "turns": [text, ...]}, as those of Spec-Bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from tokenloom.errors import ConfigError
from tokenloom.simulation.workload_lines import WorkloadLine, parse_line, read_lines

__all__ = ["read_prompt_categories"]

_Text = Annotated[str, Field(min_length=1)]


class _CategoryLine(WorkloadLine):
    """One line; the first turn is sent."""

    category: _Text
    turns: Annotated[list[_Text], Field(min_length=1)]


def read_prompt_categories(path: Path, *, limit: int | None) -> dict[str, list[str]]:
    """Reads a prompt file.

    Args:
        path: JSON lines.
        limit: only the first so many prompts of each category.

    Returns:
        The prompts of each category, both in the order of the file.

    Raises:
        ConfigError: the file cannot be read; names the line and what is wrong.
    """
    categories: dict[str, list[str]] = {}
    for number, text in read_lines(path, "prompts"):
        line = parse_line(path, number, text, _CategoryLine, "prompts")
        prompts = categories.setdefault(line.category, [])
        if limit is None or len(prompts) < limit:
            prompts.append(line.turns[0])
    if not categories:
        raise ConfigError(f'prompts={path} has none; expected lines of {{"category": name, "turns": [text, ...]}}')
    return categories
