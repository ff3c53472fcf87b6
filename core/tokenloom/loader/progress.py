"""Progress on stderr while a model is fetched: a bar where the amount is known, a spinner where it is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

__all__ = ["progress_bar", "spinner"]


@contextmanager
def spinner(message: str, *, enabled: bool) -> Iterator[None]:
    """Shows `message` and the elapsed time until the block ends."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not enabled) as progress:
        progress.add_task(message, total=None)
        yield


@contextmanager
def progress_bar(message: str, total_bytes: int, *, enabled: bool) -> Iterator[Callable[[int], None]]:
    """Yields a function that adds a number of bytes to the bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not enabled) as progress:
        task = progress.add_task(message, total=total_bytes)
        yield lambda num_bytes: progress.advance(task, num_bytes)
