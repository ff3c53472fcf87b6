"""`tokenloom simulate`: workloads through the real engine in virtual time, and through a prefix cache alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast, final

import click
from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tokenloom.bench.provenance import provenance
from tokenloom.cli.config_arguments import config_dir_option, overrides_argument
from tokenloom.cli.load_settings import LoadSettings, check_load, read_load, targets_of
from tokenloom.cli.simulate_tables import print_cache_result, print_capacity, print_runs
from tokenloom.compose import ComposedConfig, compose_config
from tokenloom.compose.sweep import SweepPoint, expand_sweep
from tokenloom.errors import ConfigError
from tokenloom.interfaces.cache import CacheConfig
from tokenloom.simulation.cache_replay import replay_cache
from tokenloom.simulation.plots import PlottedRun, by_line, check_plotting, draw_runs
from tokenloom.simulation.replay import simulate as run_simulation
from tokenloom.simulation.trace_files import read_block_chains

__all__ = ["CacheReplaySettings", "SimulateSettings", "simulate"]

_MOST_GENERATED = 1000
"""Requests of a generated load that does not say how many."""


class SimulateSettings(LoadSettings):
    """Keys of `tokenloom simulate`."""

    output: str | None = Field(default=None, description="File for the result as JSON.")
    plot: str | None = Field(default=None, description="File for a plot (.png, .svg or .pdf); needs matplotlib.")


class CacheReplaySettings(BaseModel):
    """Keys of `tokenloom simulate cache`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)

    workload: str = Field(description="Mooncake trace (.jsonl) with hash_ids.")
    limit: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Only the first so many requests.")
    output: str | None = Field(default=None, description="File for the result as JSON.")


@final
class _DefaultGroup(click.Group):
    """A group whose command `run` may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_DefaultGroup, context_settings={"help_option_names": ["-h", "--help"]})
def simulate() -> None:
    """Replay a workload in virtual time, without a model.

    tokenloom simulate workload=FILE ... stands for tokenloom simulate run workload=FILE ...
    """


@simulate.command()
@overrides_argument
@config_dir_option
def run(overrides: tuple[str, ...], config_dir: Path | None) -> None:
    """Replay a workload through the engine with executor=simulated.

    For example: tokenloom simulate workload=azure.csv rate=4,8,16 scheduler=fcfs,sjf plot=rates.png

    Values with commas compare configurations, one row each.
    """
    points = expand_sweep(("executor=simulated", *overrides), ("workload", "output", "plot"))
    # Every point is composed before the first one runs: a mistake in the last must not cost the others' time.
    composed = [compose_config(point.overrides, config_dir=config_dir, command=SimulateSettings) for point in points]
    settings = [config.extras_of(SimulateSettings) for config in composed]
    for config, own in zip(composed, settings, strict=True):
        _check(config, own)
    _check_targets(settings[0].output, settings[0].plot)
    if settings[0].plot is not None:
        check_plotting(Path(settings[0].plot))
    runs = _run_points(points, composed, settings)
    print_runs({name: run.result for name, run in runs.items()})
    lines = by_line(runs)
    if lines:
        print_capacity({line: {rate: run.result for rate, run in rates.items()} for line, rates in lines.items()})
    if settings[0].output is not None:
        results = {name: run.result for name, run in runs.items()}
        _write(settings[0].output, results if len(points) > 1 else next(iter(results.values())))
    if settings[0].plot is not None:
        draw_runs(runs, Path(settings[0].plot))


def _run_points(
    points: Sequence[SweepPoint], composed: Sequence[ComposedConfig], settings: Sequence[SimulateSettings]
) -> dict[str, PlottedRun]:
    runs: dict[str, PlottedRun] = {}
    for point, config, own in zip(points, composed, settings, strict=True):
        name = " ".join(point.changes) or own.workload
        requests = read_load(own, _MOST_GENERATED)
        with _progress(name, len(requests)) as progress:
            done = run_simulation(config.engine, requests, targets_of(own), progress=progress)
        result = {**done.result, "config": config.to_dict(), "provenance": provenance()}
        line = " ".join(change for change in point.changes if not change.startswith("rate="))
        runs[name] = PlottedRun(result, done.samples, line, own.rate)
    return runs


def _check(config: ComposedConfig, settings: SimulateSettings) -> None:
    """Refuses what would be ignored."""
    if config.engine.executor.name != "simulated":
        raise ConfigError(f"executor={config.engine.executor.name}: `tokenloom simulate` runs executor=simulated only")
    check_load(settings)


def _check_targets(*names: str | None) -> None:
    """Refuses what would lose a result, before anything runs."""
    for target in (Path(name) for name in names if name is not None):
        if not target.absolute().parent.is_dir():
            raise click.UsageError(f"{target}: its folder does not exist; make it first")
        if target.is_dir():
            raise click.UsageError(f"{target} is a folder; name a file")


@simulate.command()
@overrides_argument
@config_dir_option
def cache(overrides: tuple[str, ...], config_dir: Path | None) -> None:
    """Replay only the prefix cache.

    One request after the other, from the hash_ids of a Mooncake trace.

    For example: tokenloom simulate cache workload=mooncake.jsonl cache=hash,radix cache.num_blocks=10000
    cache.block_size=512
    """
    points = expand_sweep(overrides, ("workload", "output"))
    composed = [compose_config(point.overrides, config_dir=config_dir, command=CacheReplaySettings) for point in points]
    sizes = [_num_blocks(config) for config in composed]
    settings = composed[0].extras_of(CacheReplaySettings)
    _check_targets(settings.output)
    chains = read_block_chains(Path(settings.workload), limit=settings.limit)
    results: dict[str, dict[str, Any]] = {}
    for point, config, num_blocks in zip(points, composed, sizes, strict=True):
        plugin, block = f"cache={config.engine.cache.name}", cast(CacheConfig, config.engine.cache.config)
        name = " ".join(point.changes) or plugin
        with _progress(name, len(chains)) as progress:
            done = replay_cache(block, num_blocks, chains, plugin, progress)
        results[name] = {
            "hit_ratio": done.hit_ratio,
            **asdict(done),
            "num_blocks": num_blocks,
            "block_size": block.block_size,
            "config": config.to_dict(),
            "provenance": provenance(),
        }
    print_cache_result(results)
    if settings.output is not None:
        _write(settings.output, results if len(points) > 1 else next(iter(results.values())))


def _num_blocks(config: ComposedConfig) -> int:
    num_blocks = cast(CacheConfig, config.engine.cache.config).num_blocks
    if num_blocks is None:
        raise ConfigError("cache.num_blocks=null: there is no device to measure; say how many, e.g. 10000")
    return num_blocks


@contextmanager
def _progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, counting requests; only on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task(label, total=total)
        yield lambda done: bars.update(task, completed=done)


def _write(path: str, data: Any) -> None:
    Path(path).write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
