"""Progress bars on stderr while a model loads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["load_progress"]


@contextmanager
def load_progress(show: bool | None) -> Iterator[tuple[Callable[[str, int, int], None], bool]]:
    """Yields (callback(stage, done, total), whether anything is shown). `show=None` shows on a terminal only."""
    is_shown = sys.stderr.isatty() if show is None else show
    if not is_shown:
        yield _ignore, False
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    share = TextColumn("{task.percentage:>3.0f}%")
    columns = (TextColumn("{task.description}"), BarColumn(), share, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total or None)
            bars.update(tasks[stage], completed=done)

        yield report, True


def _ignore(stage: str, done: int, total: int) -> None:
    """Shows nothing."""
