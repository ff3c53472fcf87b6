"""`tokenloom profile`: a timeline of an engine's steps, phase by phase, as a Chrome trace."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import click
from pydantic import Field
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tokenloom.bench.workload import WorkloadItem, read_workload
from tokenloom.cli.config_arguments import config_dir_option, overrides_argument
from tokenloom.cli.console import print_table
from tokenloom.compose import compose_config
from tokenloom.errors import ConfigError
from tokenloom.llm import LLM
from tokenloom.observability.profile_run import PhaseSummary, Profiler, summarize
from tokenloom.output_files import check_output_files
from tokenloom.settings_base import Settings, UserPath

__all__ = ["ProfileSettings", "profile"]

_GENERATED = "generated"
_GENERATED_KEYS = frozenset({"num_requests", "prompt_tokens", "output_tokens"})
_MS_PER_S = 1e3


class ProfileSettings(Settings):
    """Keys of `tokenloom profile`."""

    workload: UserPath = Field(
        default=_GENERATED, description='JSON list of {"prompt": [token ids], "max_tokens": n}, or the word generated.'
    )
    output: UserPath = Field(default="trace.json", description="File for the Chrome trace.")
    steps: Annotated[int, Field(ge=1)] = Field(default=50, description="Steps to record.")
    skip: Annotated[int, Field(ge=0)] = Field(default=0, description="Steps to run before that.")
    with_ops: bool = Field(
        default=False, description="Record torch's operations and name the layers, too; slows steps down."
    )
    num_requests: Annotated[int, Field(ge=1)] = Field(default=8, description="Generated workload: requests.")
    prompt_tokens: Annotated[int, Field(ge=1)] = Field(
        default=128, description="Generated workload: tokens of each prompt."
    )
    output_tokens: Annotated[int, Field(ge=1)] = Field(
        default=64, description="Generated workload: tokens of each output."
    )


@click.command()
@overrides_argument
@config_dir_option
def profile(overrides: tuple[str, ...], config_dir: Path | None) -> None:
    """Run some steps offline and write when each of their phases began and ended.

    For example: tokenloom profile steps=20 output=trace.json scheduler.max_num_seqs=4

    The file opens in ui.perfetto.dev and in chrome://tracing.
    """
    composed = compose_config(overrides, config_dir=config_dir, command=ProfileSettings)
    settings = composed.extras_of(ProfileSettings)
    _check(settings, composed.engine.trace.file)
    profiler = Profiler(with_ops=settings.with_ops)
    with LLM(config=composed, taps=profiler.taps) as llm:
        workload = _workload(settings, llm.engine.limits.vocab_size)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
            task = bars.add_task("steps", total=settings.skip + settings.steps)
            trace = profiler.run(
                llm,
                workload,
                num_steps=settings.steps,
                num_skipped=settings.skip,
                progress=lambda done: bars.update(task, completed=done),
            )
    Path(settings.output).write_text(json.dumps(trace, allow_nan=False) + "\n", encoding="utf-8")
    _print(profiler, settings)


def _check(settings: ProfileSettings, trace: str | None) -> None:
    """Refuses what would be ignored, or would lose the result, before anything runs."""
    own = sorted(settings.model_fields_set & _GENERATED_KEYS)
    if own and settings.workload != _GENERATED:
        raise ConfigError(f"{', '.join(own)}: only of workload={_GENERATED}; {settings.workload} is a file")
    workload = None if settings.workload == _GENERATED else settings.workload
    check_output_files({"workload": workload}, {"output": settings.output}, [trace])


def _workload(settings: ProfileSettings, vocab_size: int) -> list[WorkloadItem]:
    """A file's requests; or prompts that differ from their first token on, so that none finds another one's prefix."""
    if settings.workload != _GENERATED:
        return read_workload(Path(settings.workload))
    length = settings.prompt_tokens
    return [
        WorkloadItem(
            prompt=[(number * length + position) % vocab_size for position in range(length)],
            max_tokens=settings.output_tokens,
        )
        for number in range(settings.num_requests)
    ]


def _print(profiler: Profiler, settings: ProfileSettings) -> None:
    steps = profiler.steps
    summaries = summarize(steps)
    whole_s = summaries[-1].total_s
    print_table(
        ("phase", "steps", "total ms", "share", "ms p50", "ms p99"),
        [_cells(summary, whole_s) for summary in summaries],
        title=f"{sum(step.num_tokens for step in steps)} tokens in {len(steps)} steps",
    )
    if len(steps) < settings.steps:
        click.echo(f"The workload ended after {len(steps)} of {settings.steps} steps.", err=True)
    click.echo(f"Wrote {settings.output}; open it in ui.perfetto.dev.", err=True)


def _cells(summary: PhaseSummary, whole_s: float) -> tuple[str, ...]:
    name = f"  {summary.name}" if summary.is_inner else summary.name
    milliseconds = [_MS_PER_S * value for value in (summary.total_s, summary.p50_s, summary.p99_s)]
    total, p50, p99 = (f"{value:.3f}" for value in milliseconds)
    return name, str(summary.num_steps), total, f"{summary.total_s / whole_s:.1%}", p50, p99
