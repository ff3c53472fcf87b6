"""Files that a command is to write, checked before it runs."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["check_targets"]


def check_targets(output: str | None, plot: str | None, workload: str) -> None:
    """Refuses what would lose a result."""
    targets = [Path(name).absolute() for name in (output, plot) if name is not None]
    for target in targets:
        if not target.parent.is_dir():
            raise click.UsageError(f"{target}: its folder does not exist; make it first")
        if target.is_dir():
            raise click.UsageError(f"{target} is a folder; name a file")
    if len({Path(workload).absolute(), *targets}) < len(targets) + 1:
        raise click.UsageError("workload, output and plot must be different files")
