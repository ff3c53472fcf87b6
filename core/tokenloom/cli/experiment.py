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

from tokenloom.cli.config_arguments import config_dir_option, overrides_argument
from tokenloom.cli.console import print_table
from tokenloom.cli.load_settings import GENERATED, LoadSettings, check_load, read_load, targets_of
from tokenloom.errors import TokenloomError
from tokenloom.experiments.figures import DEFAULT_FIGURES, PointResult, check_figures, table_rows
from tokenloom.experiments.plots import check_plotting, draw_figures
from tokenloom.experiments.points import ExperimentPoint, plan_points
from tokenloom.experiments.results_folder import ResultsFolder, default_folder
from tokenloom.experiments.runs import check_arrivals, run_real, run_simulated
from tokenloom.simulation.timed_request import TimedRequest

__all__ = ["ExperimentSettings", "experiment"]

_MOST_GENERATED = 100
"""Requests of a generated load that does not say how many; an experiment may run on a real model."""
_TEXT_KEYS = ("workload", "output")

Progressed = Callable[[int, float], None]
"""Told the index of the point under way, and the share of it that is done."""


class ExperimentSettings(LoadSettings):
    """Keys of `tokenloom experiment`."""

    workload: str = Field(
        default=GENERATED, description="Azure .csv, Mooncake .jsonl, bench .json, or the word 'generated'."
    )
    limit: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Only the first so many requests; how many to generate (100 by default)."
    )
    output: str | None = Field(
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
    if settings.plot:
        check_plotting()
    folder = ResultsFolder(default_folder() if settings.output is None else Path(settings.output))
    results: list[PointResult] = []
    try:
        with _progress(points) as progress:
            for point, requests in zip(points, loads, strict=True):
                results.append(_run(point, requests, folder, progress))
    finally:
        # Also after Ctrl-C: what has run is not lost.
        if results:
            folder.write_tables(results, settings.figures)
    _report(results, settings, folder)


def _loads(points: Sequence[ExperimentPoint]) -> list[list[TimedRequest]]:
    """The requests of each point, equal loads read once. Refuses what would be ignored, before anything runs."""
    known: dict[str, list[TimedRequest]] = {}
    loads: list[list[TimedRequest]] = []
    for point in points:
        settings = point.config.extras_of(ExperimentSettings)
        check_load(settings)
        key = settings.model_dump_json(include=set(LoadSettings.model_fields))
        if key not in known:
            known[key] = read_load(settings, _MOST_GENERATED)
        check_arrivals(point.config, known[key])
        loads.append(known[key])
    return loads


def _run(
    point: ExperimentPoint, requests: Sequence[TimedRequest], folder: ResultsFolder, progress: Progressed
) -> PointResult:
    settings = point.config.extras_of(ExperimentSettings)

    def report(share: float) -> None:
        progress(point.index, share)

    try:
        if point.config.engine.executor.name == "simulated":
            result = run_simulated(point.config, requests, targets_of(settings), report)
        else:
            result = run_real(point.config, requests, targets_of(settings), report)
    except TokenloomError as error:
        return folder.write_run(point, None, str(error))
    except Exception as error:  # noqa: BLE001 - a plugin may fail in any way; the other points' results are worth more
        return folder.write_run(point, None, f"{type(error).__name__}: {error}")
    return folder.write_run(point, result, None)


def _report(results: Sequence[PointResult], settings: ExperimentSettings, folder: ResultsFolder) -> None:
    print_table(("configuration", *settings.figures), table_rows(results, settings.figures))
    click.echo(f"results in {folder.path}")
    failures = [point for point in results if point.error is not None]
    for point in failures:
        click.echo(f"failed: {point.name}: {point.error}", err=True)
    check_figures(results, settings.figures)
    if settings.plot:
        draw_figures(results, settings.figures, folder.path / "results.png")
    if failures:
        raise click.exceptions.Exit(1)


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
