"""`tokenloom simulate`: workloads through the real engine in virtual time, and through a prefix cache alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast, final

import click
from pydantic import Field
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tokenloom.bench.attempt import Failure, attempt
from tokenloom.bench.plot_file import check_plotting
from tokenloom.bench.provenance import provenance
from tokenloom.cli.config_arguments import config_dir_option, overrides_argument
from tokenloom.cli.effective_keys import refuse_idle_keys
from tokenloom.cli.failures import end_by_failures
from tokenloom.cli.load_settings import LoadSettings, read_loads, targets_of
from tokenloom.cli.simulate_tables import print_cache_result, print_capacity, print_runs
from tokenloom.compose import ComposedConfig, compose_config
from tokenloom.compose.sweep import SweepPoint, expand_sweep
from tokenloom.errors import ConfigError
from tokenloom.executors.device_presets import load_preset
from tokenloom.executors.simulated import SimulatedExecutorConfig
from tokenloom.interfaces.cache import CacheConfig
from tokenloom.output_files import check_output_files
from tokenloom.settings_base import Settings, UserPath
from tokenloom.simulation.cache_replay import replay_cache
from tokenloom.simulation.plots import PlottedRun, by_line, draw_runs
from tokenloom.simulation.replay import simulate as run_simulation
from tokenloom.simulation.timed_request import TimedRequest
from tokenloom.simulation.trace_files import read_block_chains
from tokenloom.tracing.recorder import check_trace_targets

__all__ = ["CacheReplaySettings", "SimulateSettings", "simulate"]

_IDLE_CACHE_KEYS = ("cache.memory_fraction", "cache.host_memory_bytes")
"""What a cache alone, without a device, does not need."""
_MOST_GENERATED = 1000
"""Requests of a generated load that does not say how many."""


class SimulateSettings(LoadSettings):
    """Keys of `tokenloom simulate`."""

    output: UserPath | None = Field(default=None, description="File for the result as JSON.")
    plot: UserPath | None = Field(default=None, description="File for a plot (.png, .svg or .pdf); needs matplotlib.")


class CacheReplaySettings(Settings):
    """Keys of `tokenloom simulate cache`."""

    workload: UserPath = Field(description="Mooncake trace (.jsonl) with hash_ids.")
    limit: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Only the first so many requests.")
    output: UserPath | None = Field(default=None, description="File for the result as JSON.")


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
    # What can be checked is checked before the first one runs: a mistake in the last must not cost the others' time.
    composed = [compose_config(point.overrides, config_dir=config_dir, command=SimulateSettings) for point in points]
    settings = [config.extras_of(SimulateSettings) for config in composed]
    _check(composed)
    check_output_files(
        {"workload": settings[0].workload_file},
        {"output": settings[0].output, "plot": settings[0].plot},
        [config.engine.trace.file for config in composed],
    )
    if settings[0].plot is not None:
        check_plotting(Path(settings[0].plot))
    loads = read_loads(settings, _MOST_GENERATED)
    planned = [_Point(*parts) for parts in zip(points, composed, settings, loads, strict=True)]
    if len(planned) > 1:
        _compare(planned)
    else:
        _report({planned[0].name: _run(planned[0])}, settings[0], is_sweep=False)


@final
@dataclass(frozen=True, slots=True)
class _Point:
    """One configuration, and the requests that it is to serve."""

    swept: SweepPoint
    config: ComposedConfig
    settings: SimulateSettings
    requests: Sequence[TimedRequest]

    @property
    def name(self) -> str:
        return " ".join(self.swept.changes) or self.settings.workload


def _compare(planned: Sequence[_Point]) -> None:
    """Runs several points; one that fails does not take the others with it."""
    runs: dict[str, PlottedRun] = {}
    failures: dict[str, str] = {}
    try:
        for point in planned:
            done = attempt(partial(_run, point))
            if isinstance(done, Failure):
                failures[point.name] = done.reason
            else:
                runs[point.name] = done
    finally:
        # Also after Ctrl-C: what has run is not lost.
        if runs:
            _report(runs, planned[0].settings, is_sweep=True)
    end_by_failures(failures)


def _run(point: _Point) -> PlottedRun:
    with _progress(point.name, len(point.requests)) as progress:
        done = run_simulation(point.config.engine, point.requests, targets_of(point.settings), progress=progress)
    result = {**done.result, "config": point.config.to_dict(), "provenance": provenance()}
    line = " ".join(change for change in point.swept.changes if not change.startswith("rate="))
    return PlottedRun(result, done.samples, line, point.settings.rate)


def _report(runs: Mapping[str, PlottedRun], settings: SimulateSettings, *, is_sweep: bool) -> None:
    results = {name: run.result for name, run in runs.items()}
    if is_sweep and len(results) == 1:
        click.echo(next(iter(results)))
    print_runs(results)
    lines = by_line(runs)
    if lines:
        print_capacity({line: {rate: run.result for rate, run in rates.items()} for line, rates in lines.items()})
    if settings.output is not None:
        _write(settings.output, results if is_sweep else next(iter(results.values())))
    if settings.plot is not None:
        draw_runs(runs, Path(settings.plot))


def _check(composed: Sequence[ComposedConfig]) -> None:
    """Refuses what would be ignored, devices that do not exist, and traces that points would take from each other."""
    for config in composed:
        name = config.engine.executor.name
        if name != "simulated":
            raise ConfigError(f"executor={name}: `tokenloom simulate` runs executor=simulated only")
        load_preset(cast(SimulatedExecutorConfig, config.engine.executor.config).device)
    check_trace_targets([config.engine.trace.file for config in composed])


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
    for config in composed:
        refuse_idle_keys(config, "simulate cache", ("cache.*",), _IDLE_CACHE_KEYS)
    sizes = [_num_blocks(config) for config in composed]
    settings = composed[0].extras_of(CacheReplaySettings)
    check_output_files({"workload": settings.workload}, {"output": settings.output})
    limits = [config.extras_of(CacheReplaySettings).limit for config in composed]
    known = {limit: read_block_chains(Path(settings.workload), limit=limit) for limit in dict.fromkeys(limits)}
    results: dict[str, dict[str, Any]] = {}
    for point, config, num_blocks, limit in zip(points, composed, sizes, limits, strict=True):
        plugin, block = f"cache={config.engine.cache.name}", cast(CacheConfig, config.engine.cache.config)
        chains = known[limit]
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
