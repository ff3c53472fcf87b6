"""`tokenloom trace`: makes recorded decisions again, and compares two records."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tokenloom.cli.console import print_table
from tokenloom.simulation.trace_compare import Divergence, compare_traces
from tokenloom.simulation.trace_replay import replay_trace
from tokenloom.tracing.trace_file import TraceFile

__all__ = ["trace"]

_FILE = click.Path(path_type=Path)
_DIFFERENT = 1


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def trace() -> None:
    """Replay and compare decision traces, which any command writes with trace.file=FILE."""


@trace.command()
@click.argument("file", type=_FILE)
def replay(file: Path) -> int:
    """Make the decisions of FILE again; are all plans equal?

    The recorded arrivals, results and times go through the scheduler, cache and draft policy of its configuration, as
    they are installed now. No model is needed. Ends with 1 if a plan differs.
    """
    found = replay_trace(TraceFile.open(file))
    click.echo(f"{found.num_equal} plans are equal")
    if found.divergence is None:
        if found.num_unfinished:
            click.echo(
                f"note: the trace tells no end of {found.num_unfinished} requests: its run was stopped, or the file "
                "was cut short",
                err=True,
            )
        return 0
    _print_divergence(found.divergence, ("recorded", "replayed"))
    return _DIFFERENT


@trace.command()
@click.argument("first", type=_FILE)
@click.argument("second", type=_FILE)
def diff(first: Path, second: Path) -> int:
    """Compare the decisions of two traces. Ends with 1 if they differ."""
    found = compare_traces(TraceFile.open(first), TraceFile.open(second))
    names = sorted(found.counts[0].keys() | found.counts[1].keys())
    rows = [[name, *(str(counts.get(name, 0)) for counts in found.counts)] for name in names]
    print_table(["", str(first), str(second)], rows)
    if found.divergence is None:
        click.echo("all decisions are equal")
        return 0
    _print_divergence(found.divergence, ("first", "second"))
    return _DIFFERENT


def _print_divergence(found: Divergence, names: tuple[str, str]) -> None:
    where = "" if found.step is None else f" in step {found.step}"
    whose = "" if found.request is None else f", request {found.request}"
    click.echo(f"first divergence{where} ({found.what}{whose}): {found.detail}")
    for name, record in zip(names, (found.first, found.second), strict=True):
        shown = None if record is None else {key: value for key, value in record.items() if key != "clock"}
        click.echo(f"{name}: {'nothing' if shown is None else json.dumps(shown)}")
