"""How a load goes, while it runs: a line that is rewritten on a terminal, else a line now and then."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tokenloom.load_generator.load_run import LoadStatus
from tokenloom.load_generator.measure import LoadTest

__all__ = ["load_report", "status_text"]

_LINE_EVERY_S = 10.0


@contextmanager
def load_report(name: str, test: LoadTest) -> Iterator[Callable[[LoadStatus], None]]:
    """Yields what is to be told how the load goes; writes to stderr."""
    if not sys.stderr.isatty():
        yield _Lines(name).take
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[text]}"), console=Console(stderr=True)) as bars:
        by_time = test.traffic.duration_s is not None
        total = test.traffic.duration_s if by_time else test.workload.num_requests
        task = bars.add_task(name, total=total, text="")

        def take(status: LoadStatus) -> None:
            done = status.elapsed_s if by_time else status.num_sent - status.num_running
            bars.update(task, completed=int(done), text=status_text(status))

        yield take


def status_text(status: LoadStatus) -> str:
    """One line."""
    parts = [f"{status.num_running} running", f"{status.num_completed} completed"]
    if status.num_refused:
        parts.append(f"{status.num_refused} refused")
    if status.num_failed:
        parts.append(f"{status.num_failed} failed")
    parts.append(f"{status.num_tokens / status.elapsed_s:.0f} tokens/s")
    if status.recent_ttft_s is not None:
        parts.append(f"TTFT {1000 * status.recent_ttft_s:.0f} ms")
    return ", ".join(parts)


@final
class _Lines:
    def __init__(self, name: str) -> None:
        self._name = name
        self._next_s = _LINE_EVERY_S

    def take(self, status: LoadStatus) -> None:
        if status.elapsed_s >= self._next_s:
            self._next_s += _LINE_EVERY_S
            click.echo(f"{self._name}: {status.elapsed_s:.0f} s: {status_text(status)}", err=True)
