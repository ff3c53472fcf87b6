"""One progress bar for work that goes through several named parts, on stderr, only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

__all__ = ["task_progress"]


@contextmanager
def task_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yields what to tell (part, done, in all); each part has a bar of its own."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        parts: dict[str, TaskID] = {}

        def report(part: str, done: int, total: int) -> None:
            if part not in parts:
                parts[part] = bars.add_task(part, total=total)
            bars.update(parts[part], completed=done)

        yield report
