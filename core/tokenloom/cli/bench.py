"""`tokenloom bench`: measurements of an engine on this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar

import click
from pydantic import BaseModel, ConfigDict, Field
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tokenloom.bench.throughput import ThroughputRun, run_throughput
from tokenloom.bench.workload import WorkloadItem, read_workload
from tokenloom.cli.config_arguments import config_dir_option, overrides_argument
from tokenloom.cli.console import print_table
from tokenloom.cli.run_report import print_plan
from tokenloom.compose import compose_config
from tokenloom.llm import LLM

__all__ = ["ThroughputSettings", "bench"]


class ThroughputSettings(BaseModel):
    """Keys of `tokenloom bench throughput`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True)

    workload: str = Field(description='JSON list of {"prompt": [token ids], "max_tokens": n}.')
    output: str | None = Field(default=None, description="File for the result as JSON.")
    dump_tokens: str | None = Field(default=None, description="File for the output ids, a JSON list of lists.")
    repetitions: Annotated[int, Field(ge=1)] = Field(default=1, description="Runs; the median one is reported.")
    keep_cache: bool = Field(default=False, description="Keep the prefix cache between repetitions.")


@click.group()
def bench() -> None:
    """Measure an engine on this machine."""


@bench.command()
@overrides_argument
@click.option("-v", "--verbose", is_flag=True, help="Print the resolved plan and the memory breakdown first.")
@config_dir_option
def throughput(overrides: tuple[str, ...], verbose: bool, config_dir: Path | None) -> None:
    """Run a workload offline, all requests at once, greedy.

    For example: tokenloom bench throughput workload=mixed.json output=result.json cache=none
    """
    composed = compose_config(overrides, config_dir=config_dir, command=ThroughputSettings)
    settings = composed.extras_of(ThroughputSettings)
    workload = read_workload(Path(settings.workload))
    _check_files(settings)
    with LLM(config=composed) as llm:
        if verbose:
            print_plan(llm)
        runs = _repeat(llm, workload, settings)
    chosen = sorted(runs, key=lambda run: run.result["wall_s"])[(len(runs) - 1) // 2]
    chosen.result["repetitions_wall_s"] = [run.result["wall_s"] for run in runs]
    _print(chosen.result)
    if settings.output is not None:
        _write(settings.output, chosen.result)
    if settings.dump_tokens is not None:
        _write(settings.dump_tokens, chosen.token_ids)


def _check_files(settings: ThroughputSettings) -> None:
    """Refuses what would lose a result, before anything runs."""
    targets = [Path(target).absolute() for target in (settings.output, settings.dump_tokens) if target is not None]
    for target in targets:
        if not target.parent.is_dir():
            raise click.UsageError(f"{target}: its folder does not exist; make it first")
        if target.is_dir():
            raise click.UsageError(f"{target} is a folder; name a file")
    files = [Path(settings.workload).absolute(), *targets]
    if len(set(files)) < len(files):
        raise click.UsageError("workload, output and dump_tokens must be different files")


def _repeat(llm: LLM, workload: list[WorkloadItem], settings: ThroughputSettings) -> list[ThroughputRun]:
    total = sum(item.max_tokens for item in workload)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    runs: list[ThroughputRun] = []
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        for number in range(settings.repetitions):
            task = bars.add_task(f"run {number + 1}/{settings.repetitions}, output tokens", total=total)
            offset = llm.engine.stats.num_output_tokens

            def report(done: int, task: Any = task, offset: int = offset) -> None:
                bars.update(task, completed=done - offset)

            runs.append(run_throughput(llm, workload, keep_cache=settings.keep_cache, progress=report))
    return runs


def _print(result: dict[str, Any]) -> None:
    walls = result["repetitions_wall_s"]
    engine = result["engine"]
    rows = [
        ("output tokens/s", f"{result['output_tok_s']:.1f}"),
        ("total tokens/s", f"{result['total_tok_s']:.1f}"),
        ("wall time", f"{result['wall_s']:.2f} s"),
        ("requests", f"{result['num_requests']} ({result['num_failed']} failed)"),
        ("prompt / output tokens", f"{result['num_prompt_tokens']} / {result['num_output_tokens']}"),
        ("steps", f"{engine['num_steps']}, Python part {result['python_ms_per_step']:.2f} ms each"),
        ("prompt tokens cached", str(engine["num_cached_tokens"])),
        ("preemptions", str(engine["num_preemptions"])),
    ]
    if engine["num_draft_tokens"]:
        rate = engine["num_accepted_tokens"] / engine["num_draft_tokens"]
        rows.append(("drafts accepted", f"{engine['num_accepted_tokens']}/{engine['num_draft_tokens']} ({rate:.0%})"))
    if len(walls) > 1:
        rows.append(("repetitions", f"{len(walls)}: {min(walls):.2f} .. {median(walls):.2f} .. {max(walls):.2f} s"))
    print_table(("figure", "value"), rows)
    latency = result["latency"]
    names = {"ttft_s": "TTFT ms", "tpot_s": "TPOT ms", "itl_s": "ITL ms", "e2e_s": "E2E ms"}
    print_table(
        ("latency", "mean", "p50", "p90", "p95", "p99"),
        [(name, *(_ms(latency[key][p]) for p in ("mean", "p50", "p90", "p95", "p99"))) for key, name in names.items()],
    )


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f}"


def _write(path: str, data: Any) -> None:
    Path(path).write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
