"""`tokenloom bench spec`: what drafters bring on this machine, by category of prompts, beside no drafts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, final

import click
from pydantic import Field
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from tokenloom.bench.plot_file import check_plotting
from tokenloom.bench.provenance import provenance
from tokenloom.bench.spec_figures import category_figures, category_means, plain_figures
from tokenloom.bench.spec_plot import draw_speculation
from tokenloom.bench.spec_prompts import read_prompt_categories
from tokenloom.bench.spec_run import CategoryRun, SpecWork, encode_categories
from tokenloom.bench.spec_turns import EngineTurns
from tokenloom.cli.bench_spec_tables import print_drafters
from tokenloom.cli.config_arguments import config_dir_option, overrides_argument
from tokenloom.cli.failures import end_by_failures
from tokenloom.compose import ComposedConfig, compose_config
from tokenloom.compose.sweep import expand_sweep
from tokenloom.errors import ConfigError
from tokenloom.llm import LLM
from tokenloom.output_files import check_output_files
from tokenloom.settings_base import Settings, UserPath
from tokenloom.tracing.recorder import check_trace_targets

__all__ = ["SpecSettings", "spec"]

_ALL = "all"
"""The category that holds all others."""


class SpecSettings(Settings):
    """Keys of `tokenloom bench spec`."""

    prompts: UserPath = Field(
        description='JSON lines of {"category": name, "turns": [text, ...]}, as Spec-Bench has them.'
    )
    limit: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Only the first so many prompts of each category."
    )
    max_tokens: Annotated[int, Field(ge=1)] = Field(default=128, description="Most output tokens of each answer.")
    concurrency: Annotated[int, Field(ge=1)] = Field(default=1, description="Requests that run at the same time.")
    chat: bool = Field(default=True, description="Ask in the model's chat template; false sends the bare text.")
    rehearse: bool = Field(
        default=False, description="Run everything once before measuring, for drafters that learn from earlier answers."
    )
    side_by_side: bool = Field(
        default=False, description="Load all engines at once and run each category on one after the other."
    )
    repetitions: Annotated[int, Field(ge=1)] = Field(default=1, description="Runs of each; medians are reported.")
    output: UserPath | None = Field(default=None, description="File for the result as JSON.")
    plot: UserPath | None = Field(default=None, description="File for a plot (.png, .svg or .pdf); needs matplotlib.")


@click.command()
@overrides_argument
@config_dir_option
def spec(overrides: tuple[str, ...], config_dir: Path | None) -> None:
    """Compare drafters with no drafts, by category of prompts.

    For example: tokenloom bench spec prompts=spec_bench.jsonl limit=4 spec_decode=ngram,suffix output=spec.json

    Values with commas compare drafters and their settings. Each is measured beside spec_decode=none with the same
    other settings, in turn.
    """
    plan = _plan(overrides, config_dir)
    settings = plan.settings
    categories = read_prompt_categories(Path(settings.prompts), limit=settings.limit)
    if _ALL in categories:
        raise ConfigError(f"prompts={settings.prompts}: a category is called {_ALL}, which stands for all of them here")
    measured, failures = _measure(plan, categories)
    results = _results(plan, measured)
    for points in results.values():
        print_drafters(points["drafters"], points["none"])
    if settings.output is not None:
        text = json.dumps({"baselines": results, "provenance": provenance()}, indent=1, allow_nan=False)
        Path(settings.output).write_text(text + "\n", encoding="utf-8")
    drafters = {name: point["categories"] for points in results.values() for name, point in points["drafters"].items()}
    if settings.plot is not None and drafters:
        draw_speculation(drafters, _ALL, Path(settings.plot))
    end_by_failures(failures)


@final
@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to run.

    Attributes:
        settings: the command's own, of the first point.
        engines: configurations by name, those without drafts first.
        baseline_of: for each drafter's name, that of the one without drafts that it is compared with.
    """

    settings: SpecSettings
    engines: Mapping[str, ComposedConfig]
    baseline_of: Mapping[str, str]


def _plan(overrides: Sequence[str], config_dir: Path | None) -> _Plan:
    """Composes every point before the first one runs: a mistake in the last must not cost the others' time."""
    baselines: dict[str, ComposedConfig] = {}
    drafters: dict[str, ComposedConfig] = {}
    baseline_of: dict[str, str] = {}
    points = expand_sweep(overrides, ("prompts", "output", "plot"))
    for point in points:
        config = _compose(point.overrides, config_dir)
        drafter = config.engine.spec_decode.name
        if drafter == "none":
            continue
        name = " ".join(point.changes) or f"spec_decode={drafter}"
        plain = [word for word in point.overrides if not _is_of_drafter(word)]
        others = [word for word in point.changes if not _is_of_drafter(word)]
        baseline = " ".join(["spec_decode=none", *others])
        if baseline not in baselines:
            baselines[baseline] = _compose([*plain, "spec_decode=none"], config_dir)
        drafters[name], baseline_of[name] = config, baseline
    if not drafters:
        raise ConfigError("spec_decode=none: there is nothing to compare; name drafters, e.g. spec_decode=ngram,suffix")
    settings = next(iter(drafters.values())).extras_of(SpecSettings)
    engines = {**baselines, **drafters}
    traces = [config.engine.trace.file for config in engines.values()]
    check_output_files({"prompts": settings.prompts}, {"output": settings.output, "plot": settings.plot}, traces)
    check_trace_targets(traces * settings.repetitions)
    if settings.plot is not None:
        check_plotting(Path(settings.plot))
    return _Plan(settings, engines, baseline_of)


def _compose(overrides: Sequence[str], config_dir: Path | None) -> ComposedConfig:
    """A point, with as many requests at a time as `concurrency` says."""
    config = compose_config(overrides, config_dir=config_dir, command=SpecSettings)
    if config.sources["scheduler.max_num_seqs"].startswith("override "):
        raise ConfigError("scheduler.max_num_seqs is what concurrency stands for here; set concurrency")
    count = config.extras_of(SpecSettings).concurrency
    words = [*overrides, f"scheduler.max_num_seqs={count}"]
    return compose_config(words, config_dir=config_dir, command=SpecSettings)


def _is_of_drafter(override: str) -> bool:
    key = override.partition("=")[0].strip().lstrip("+~").replace("/", ".")
    return key.partition(".")[0] == "spec_decode"


_Runs = dict[str, list[dict[str, CategoryRun]]]
"""By the name of an engine, for each repetition, its categories."""


def _measure(plan: _Plan, categories: Mapping[str, Sequence[str]]) -> tuple[_Runs, dict[str, str]]:
    """What the engines did, and why others failed."""
    with _progress() as say:
        turns = EngineTurns(
            names=list(plan.engines),
            baseline_of=plan.baseline_of,
            repetitions=plan.settings.repetitions,
            side_by_side=plan.settings.side_by_side,
            load=lambda name: _load(plan.engines[name], categories),
            say=say,
        )
        runs = turns.run()
    together = {
        name: [{**run, _ALL: CategoryRun.sum_of(run.values())} for run in repetitions]
        for name, repetitions in runs.items()
    }
    return together, turns.failures


def _load(config: ComposedConfig, categories: Mapping[str, Sequence[str]]) -> tuple[LLM, SpecWork]:
    settings, llm = config.extras_of(SpecSettings), LLM(config=config)
    try:
        prompts = encode_categories(llm, categories, chat=settings.chat)
    except BaseException:
        llm.close()
        raise
    return llm, SpecWork(prompts, settings.max_tokens, settings.concurrency, settings.rehearse)


def _results(plan: _Plan, runs: _Runs) -> dict[str, Any]:
    """By the engine without drafts: its figures, and those of the drafters that are compared with it."""
    results: dict[str, Any] = {}
    for name, baseline in plan.baseline_of.items():
        if name not in runs or baseline not in runs:
            continue
        plain = runs[baseline]
        entry = results.setdefault(
            baseline,
            {
                "none": {category: plain_figures([run[category] for run in plain]) for category in plain[0]},
                "runs": _raw(plain),
                "config": plan.engines[baseline].to_dict(),
                "drafters": {},
            },
        )
        figures = {
            category: category_figures([run[category] for run in runs[name]], [run[category] for run in plain])
            for category in plain[0]
        }
        entry["drafters"][name] = {
            "categories": figures,
            "mean_of_categories": category_means([of for category, of in figures.items() if category != _ALL]),
            "runs": _raw(runs[name]),
            "config": plan.engines[name].to_dict(),
        }
    return results


def _raw(runs: Sequence[Mapping[str, CategoryRun]]) -> list[dict[str, Any]]:
    """What was measured, without the answers."""
    return [
        {name: {key: value for key, value in asdict(run).items() if key != "token_ids"} for name, run in one.items()}
        for one in runs
    ]


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Says on stderr what runs, and how far it is; only on a terminal."""
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        task = bars.add_task("", total=None)
        yield lambda text: bars.update(task, description=text)
