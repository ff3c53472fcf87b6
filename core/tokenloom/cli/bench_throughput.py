"""`tokenloom bench throughput`: a workload through an engine on this machine."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import click
from pydantic import Field
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tokenloom.bench.attempt import Failure, attempt
from tokenloom.bench.throughput import ThroughputRun, run_throughput
from tokenloom.bench.workload import WorkloadItem, read_workload
from tokenloom.cli.bench_tables import print_comparison, print_result
from tokenloom.cli.config_arguments import config_dir_option, overrides_argument
from tokenloom.cli.failures import end_by_failures
from tokenloom.cli.run_report import print_plan
from tokenloom.compose import ComposedConfig, compose_config
from tokenloom.compose.sweep import expand_sweep
from tokenloom.llm import LLM
from tokenloom.output_files import check_output_files
from tokenloom.settings_base import Settings, UserPath
from tokenloom.tracing.recorder import check_trace_targets

__all__ = ["ThroughputSettings", "throughput"]


class ThroughputSettings(Settings):
    """Keys of `tokenloom bench throughput`."""

    workload: UserPath = Field(description='JSON list of {"prompt": [token ids], "max_tokens": n}.')
    output: UserPath | None = Field(default=None, description="File for the result as JSON.")
    dump_tokens: UserPath | None = Field(default=None, description="File for the output ids, a JSON list of lists.")
    repetitions: Annotated[int, Field(ge=1)] = Field(default=1, description="Runs; the median one is reported.")
    keep_cache: bool = Field(default=False, description="Keep the prefix cache between repetitions.")


@click.command()
@overrides_argument
@click.option("-v", "--verbose", is_flag=True, help="Print the resolved plan and the memory breakdown first.")
@config_dir_option
def throughput(overrides: tuple[str, ...], verbose: bool, config_dir: Path | None) -> None:
    """Run a workload offline, all requests at once, greedy.

    For example: tokenloom bench throughput workload=mixed.json output=result.json cache=none

    Values with commas compare configurations, one row each: tokenloom bench throughput workload=mixed.json
    scheduler=fcfs,mine repetitions=3
    """
    points = expand_sweep(overrides, tuple(ThroughputSettings.model_fields))
    # Every point is composed before the first one runs: a mistake in the last must not cost the others' time.
    composed = [compose_config(point.overrides, config_dir=config_dir, command=ThroughputSettings) for point in points]
    settings = composed[0].extras_of(ThroughputSettings)
    workload = read_workload(Path(settings.workload))
    check_output_files(
        {"workload": settings.workload},
        {"output": settings.output, "dump_tokens": settings.dump_tokens},
        [config.engine.trace.file for config in composed],
    )
    if len(points) > 1:
        names = [" ".join(point.changes) for point in points]
        _compare(dict(zip(names, composed, strict=True)), workload, settings)
        return
    with LLM(config=composed[0]) as llm:
        if verbose:
            print_plan(llm)
        runs = _repeat(llm, workload, settings)
    chosen = _median_run(runs)
    print_result(chosen.result)
    if settings.output is not None:
        _write(settings.output, chosen.result)
    if settings.dump_tokens is not None:
        _write(settings.dump_tokens, chosen.token_ids)


def _compare(configs: dict[str, ComposedConfig], workload: list[WorkloadItem], settings: ThroughputSettings) -> None:
    """Runs configurations in turn, every repetition anew, so that a slow minute of the machine hurts all alike."""
    if settings.keep_cache:
        raise click.UsageError("keep_cache has no meaning where several configurations are compared; drop one of them")
    check_trace_targets([config.engine.trace.file for config in configs.values()] * settings.repetitions)
    runs: dict[str, list[ThroughputRun]] = {name: [] for name in configs}
    failures: dict[str, str] = {}
    once = settings.model_copy(update={"repetitions": 1})
    for _ in range(settings.repetitions):
        for name, config in configs.items():
            if name in failures:
                continue
            done = attempt(partial(_load_and_run, config, workload, once, name))
            if isinstance(done, Failure):
                failures[name] = done.reason
            else:
                runs[name] += done
    chosen = {name: _median_run(repeated) for name, repeated in runs.items() if name not in failures}
    print_comparison({name: run.result for name, run in chosen.items()})
    if settings.output is not None:
        _write(settings.output, {name: run.result for name, run in chosen.items()})
    if settings.dump_tokens is not None:
        _write(settings.dump_tokens, {name: run.token_ids for name, run in chosen.items()})
    end_by_failures(failures)


def _load_and_run(
    config: ComposedConfig, workload: list[WorkloadItem], settings: ThroughputSettings, label: str
) -> list[ThroughputRun]:
    with LLM(config=config) as llm:
        return _repeat(llm, workload, settings, label)


def _median_run(runs: list[ThroughputRun]) -> ThroughputRun:
    chosen = sorted(runs, key=lambda run: run.result["wall_s"])[(len(runs) - 1) // 2]
    chosen.result["repetitions_wall_s"] = [run.result["wall_s"] for run in runs]
    return chosen


def _repeat(
    llm: LLM, workload: list[WorkloadItem], settings: ThroughputSettings, label: str = ""
) -> list[ThroughputRun]:
    total = sum(item.max_tokens for item in workload)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    runs: list[ThroughputRun] = []
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        for number in range(settings.repetitions):
            task = bars.add_task(label or f"run {number + 1}/{settings.repetitions}, output tokens", total=total)
            offset = llm.engine.stats.num_output_tokens

            def report(done: int, task: Any = task, offset: int = offset) -> None:
                bars.update(task, completed=done - offset)

            runs.append(run_throughput(llm, workload, keep_cache=settings.keep_cache, progress=report))
    return runs


def _write(path: str, data: Any) -> None:
    Path(path).write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
