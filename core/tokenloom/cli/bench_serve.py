"""`tokenloom bench serve`: load on any OpenAI-compatible server, and what it answered how fast."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from pydantic import Field

from tokenloom.bench.plot_file import check_plotting
from tokenloom.bench.provenance import client_provenance
from tokenloom.cli.config_arguments import overrides_argument
from tokenloom.cli.load_report import load_report
from tokenloom.cli.load_tables import print_capacity, print_loads, print_server, print_warnings
from tokenloom.cli.load_test_settings import LoadTestSettings, endpoint_of, load_test_of, wanted_form
from tokenloom.cli.own_keys import read_own_keys, text_keys
from tokenloom.compose.sweep import SweepPoint, expand_sweep
from tokenloom.errors import ConfigError, TokenloomError
from tokenloom.load_generator.endpoint import Endpoint
from tokenloom.load_generator.event_loop import run_with_stop
from tokenloom.load_generator.http_client import LoadClient, open_session
from tokenloom.load_generator.measure import LoadTest, Measured, measure
from tokenloom.load_generator.plots import draw_load, draw_sweep
from tokenloom.load_generator.prompts import PromptForm
from tokenloom.load_generator.result_file import write_results
from tokenloom.load_generator.server_probe import probe_server
from tokenloom.output_files import check_output_files

__all__ = ["BenchServeSettings", "serve"]

_COMMAND = "tokenloom bench serve"
_INTERRUPTED = 130


class BenchServeSettings(LoadTestSettings):
    """Keys of `tokenloom bench serve`."""

    base_url: str = Field(description="The server, http://localhost:8000; /v1 joins a URL without a path.")
    model: str | None = Field(default=None, description="Name of the model there; null: the first that it lists.")
    api_key: str | None = Field(default=None, description="Sent as a bearer token; env:NAME takes it from a variable.")


@dataclass(frozen=True, slots=True)
class _Point:
    """One run that was asked for."""

    name: str
    settings: BenchServeSettings
    test: LoadTest
    endpoint: Endpoint
    form: PromptForm | None


@click.command()
@overrides_argument
def serve(overrides: tuple[str, ...]) -> None:
    """Measure a server under load, whichever engine runs it.

    For example: tokenloom bench serve base_url=http://localhost:8000 rate=2,4,8 duration_s=60 warmup_s=10
    prompt_tokens=256 output_tokens=64 output=rates.json plot=rates.png

    Values with commas measure one after the other, a row each. Ctrl-C ends with the results so far.
    """
    points = expand_sweep(overrides, text_keys(BenchServeSettings))
    settings = [read_own_keys(point.overrides, BenchServeSettings, _COMMAND) for point in points]
    # All of them before the first one runs: a mistake in the last must not cost the others' time.
    planned = [_plan(" ".join(point.changes), own) for point, own in zip(points, settings, strict=True)]
    swept = _swept_key(points)
    first = settings[0]
    check_output_files({"workload": first.workload_file}, {"output": first.output, "plot": first.plot})
    if first.plot is not None:
        check_plotting(Path(first.plot))
        if len(points) > 1 and swept is None:
            raise ConfigError("plot: draws a sweep of one key with numbers; sweep one key only, or drop plot")
    runs: dict[str, Measured] = {}
    try:
        run_with_stop(lambda stop: _measure_all(planned, runs, stop))
    except TokenloomError:
        # Of a sweep, what has run is not lost, nor what a run has shown that lost its server.
        if runs:
            _report(runs, settings[: len(runs)], swept)
        raise
    if not runs:
        raise KeyboardInterrupt
    _report(runs, settings[: len(runs)], swept)
    _exit_by(runs)


async def _measure_all(points: Sequence[_Point], runs: dict[str, Measured], stop: asyncio.Event) -> None:
    """Adds a run of each point to `runs`, until it is stopped."""
    async with open_session() as session:
        for point in points:
            client = LoadClient(point.endpoint, session, time.perf_counter)
            server = await probe_server(client, point.form, point.test.probe_ids())
            if point is points[0]:
                print_server(server, point.test)
            with load_report(point.name, point.test) as report:
                run = await measure(point.test, server, client, point.settings.workload_seed, stop, report)
            if run.records:
                runs[point.name] = run
            run.require_server()
            if stop.is_set():
                return


def _plan(changes: str, settings: BenchServeSettings) -> _Point:
    return _Point(
        name=changes or settings.base_url,
        settings=settings,
        test=load_test_of(settings),
        endpoint=endpoint_of(settings, "base_url", settings.base_url, settings.model, settings.api_key),
        form=wanted_form(settings),
    )


def _report(runs: dict[str, Measured], settings: Sequence[BenchServeSettings], swept: str | None) -> None:
    results = {name: run.result for name, run in runs.items()}
    print_loads(results)
    if swept == "rate":
        print_capacity({own.rate or 0.0: run.result for own, run in zip(settings, runs.values(), strict=True)})
    print_warnings(results)
    first = settings[0]
    if first.output is not None:
        complete = {
            name: (
                {**run.result, "settings": own.model_dump(exclude={"api_key"}), "provenance": client_provenance()},
                run.records,
            )
            for (name, run), own in zip(runs.items(), settings, strict=True)
        }
        write_results(Path(first.output), complete)
    if first.plot is not None:
        if swept is None or len(runs) == 1:
            draw_load(next(iter(runs.values())), Path(first.plot))
        else:
            by_value = {
                float(getattr(own, swept)): run.result for own, run in zip(settings, runs.values(), strict=True)
            }
            draw_sweep(swept, by_value, Path(first.plot))


def _exit_by(runs: dict[str, Measured]) -> None:
    if any(run.was_interrupted for run in runs.values()):
        click.echo("interrupted: these are the results so far", err=True)
        raise click.exceptions.Exit(_INTERRUPTED)
    if not all(run.has_completed for run in runs.values()):
        click.echo("failed: no request completed", err=True)
        raise click.exceptions.Exit(1)


def _swept_key(points: Sequence[SweepPoint]) -> str | None:
    """The one key with numbers that differs between points; None if there is none, or several."""
    keys = {change.partition("=")[0] for point in points for change in point.changes}
    if len(keys) != 1:
        return None
    (key,) = keys
    values = [change.partition("=")[2] for point in points for change in point.changes]
    return key if all(value.replace(".", "", 1).isdigit() for value in values) else None
