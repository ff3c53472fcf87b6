"""`tokenloom experiment`: every combination of a sweep, real or simulated, in one table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import click
from pydantic import Field
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from tokenloom.bench.attempt import Failure, attempt
from tokenloom.bench.plot_file import check_matplotlib
from tokenloom.cli.config_arguments import config_dir_option, overrides_argument
from tokenloom.cli.console import print_table
from tokenloom.cli.failures import end_by_failures
from tokenloom.cli.load_settings import GENERATED, LoadSettings, NumRequests, read_loads, targets_of
from tokenloom.errors import ConfigError
from tokenloom.experiments.figures import DEFAULT_FIGURES, PointResult, check_figures, table_rows
from tokenloom.experiments.plots import draw_figures
from tokenloom.experiments.points import ExperimentPoint, plan_points
from tokenloom.experiments.results_folder import ResultsFolder, default_folder
from tokenloom.experiments.runs import check_arrivals, run_real, run_simulated
from tokenloom.settings_base import UserPath
from tokenloom.simulation.timed_request import TimedRequest
from tokenloom.tracing.recorder import check_trace_targets

__all__ = ["ExperimentSettings", "experiment"]

_MOST_GENERATED = 100
"""Requests of a generated load that does not say how many; an experiment may run on a real model."""
_TEXT_KEYS = ("workload", "output")

Progressed = Callable[[int, float], None]
"""Told the index of the point under way, and the share of it that is done."""


class ExperimentSettings(LoadSettings):
    """Keys of `tokenloom experiment`."""

    workload: UserPath = Field(
        default=GENERATED, description="Azure .csv, Mooncake .jsonl, bench .json, or the word 'generated'."
    )
    limit: NumRequests | None = Field(
        default=None, description="Only the first so many requests; how many to generate (100 by default)."
    )
    output: UserPath | None = Field(
        default=None, description="New folder for the results; null makes multirun/DATE/TIME, in UTC."
    )
    plot: bool = Field(default=True, description="Also draw the figures, as results.png; needs matplotlib.")
    figures: Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        default=DEFAULT_FIGURES, description="Columns of the table, panels of the plot: dotted names of results."
    )
    sweep: dict[str, str] = Field(
        default={}, description="What a preset compares: values with commas by key, as on the command line."
    )


@click.command()
@overrides_argument
@config_dir_option
def experiment(overrides: tuple[str, ...], config_dir: Path | None) -> None:
    """Run every combination of the values with commas, and compare.

    For example: tokenloom experiment scheduler=fcfs,priority cache=hash,radix executor=simulated rate=4 output=found

    Ready presets: tokenloom experiment experiment=chunk_size

    The folder gets a JSON file for each run, results.csv, results.md and results.png.
    """
    points = plan_points(overrides, config_dir=config_dir, command=ExperimentSettings, text_keys=_TEXT_KEYS)
    settings = points[0].config.extras_of(ExperimentSettings)
    loads = _loads(points)
    folder_path = default_folder() if settings.output is None else Path(settings.output)
    _check_traces([point.config.engine.trace.file for point in points], folder_path)
    if settings.plot:
        check_matplotlib("plot=true", ", or say plot=false")
    folder = ResultsFolder(folder_path)
    results: list[PointResult] = []
    # Simulated and real results have some figures of their own.
    are_alike = len({point.config.engine.executor.name for point in points}) == 1
    try:
        with _progress(points) as progress:
            for point, requests in zip(points, loads, strict=True):
                results.append(_run(point, requests, folder, progress))
                if are_alike and point is not points[-1]:
                    check_figures(results, settings.figures, more_to_come=True)
    finally:
        # Also after Ctrl-C: what has run is not lost.
        if results:
            folder.write_tables(results, settings.figures)
    _report(results, settings, folder)


def _check_traces(traces: Sequence[str | None], folder: Path) -> None:
    check_trace_targets(traces)
    own = folder.resolve()
    for file in traces:
        if file is not None and Path(file).resolve().is_relative_to(own):
            raise ConfigError(
                f"trace.file={file} lies in output={folder}, which holds the results and nothing else; name a file "
                "elsewhere"
            )


def _loads(points: Sequence[ExperimentPoint]) -> list[list[TimedRequest]]:
    """The requests of each point. Refuses what would be ignored, before anything runs."""
    loads = read_loads([point.config.extras_of(ExperimentSettings) for point in points], _MOST_GENERATED)
    for point, requests in zip(points, loads, strict=True):
        check_arrivals(point.config, requests)
    return loads


def _run(
    point: ExperimentPoint, requests: Sequence[TimedRequest], folder: ResultsFolder, progress: Progressed
) -> PointResult:
    settings = point.config.extras_of(ExperimentSettings)

    def report(share: float) -> None:
        progress(point.index, share)

    run = run_simulated if point.config.engine.executor.name == "simulated" else run_real
    done = attempt(lambda: run(point.config, requests, targets_of(settings), report))
    if isinstance(done, Failure):
        return folder.write_run(point, None, done.reason)
    return folder.write_run(point, done, None)


def _report(results: Sequence[PointResult], settings: ExperimentSettings, folder: ResultsFolder) -> None:
    print_table(("configuration", *settings.figures), table_rows(results, settings.figures))
    click.echo(f"results in {folder.path}")
    check_figures(results, settings.figures)
    if settings.plot:
        draw_figures(results, settings.figures, folder.path / "results.png")
    end_by_failures({point.name: point.error for point in results if point.error is not None})


@contextmanager
def _progress(points: Sequence[ExperimentPoint]) -> Iterator[Progressed]:
    """Two progress bars on stderr: the whole experiment, and the run under way; only on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        whole = bars.add_task(f"{len(points)} runs", total=len(points))
        current = bars.add_task("", total=1.0)

        def report(index: int, share: float) -> None:
            bars.update(whole, completed=index + share)
            bars.update(current, completed=share, description=points[index].name)

        yield report
