"""`tokenloom eval compare`: variants of a model side by side, each beside one reference."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import click

from tokenloom.bench.attempt import Failure, attempt
from tokenloom.bench.plot_file import check_plotting
from tokenloom.bench.provenance import provenance
from tokenloom.cli.config_arguments import config_dir_option, split_words
from tokenloom.cli.eval_reference import reference_overrides, split_reference
from tokenloom.cli.eval_settings import FILE_KEYS, EvalCompareSettings, check_tasks, evaluation_plan
from tokenloom.cli.eval_tables import print_variants
from tokenloom.cli.failures import end_by_failures
from tokenloom.cli.task_progress import task_progress
from tokenloom.compose import ComposedConfig, compose_config
from tokenloom.compose.sweep import expand_sweep
from tokenloom.errors import ConfigError
from tokenloom.evaluation.comparison_plot import draw_variants
from tokenloom.evaluation.evaluate import Evaluation
from tokenloom.output_files import check_output_files
from tokenloom.tracing.recorder import check_trace_targets

__all__ = ["compare"]

_UNQUANTIZED = "quant=none"


@click.command()
@click.argument("words", nargs=-1, metavar="[TASK]... [KEY=VALUE]...")
@click.option(
    "--variant",
    "variants",
    multiple=True,
    metavar="'NAME: KEY=VALUE ...'",
    help="A variant with settings of its own, such as another model; may be repeated.",
)
@config_dir_option
def compare(words: tuple[str, ...], variants: tuple[str, ...], config_dir: Path | None) -> None:
    """Put variants side by side: size, quality with intervals, speed.

    Values with commas make variants: tokenloom eval compare quant=none,int8 model.dtype=bfloat16 output=found.json

    So does --variant, for what goes together: tokenloom eval compare --variant "rtn: model=out/rtn" --variant "gptq:
    model=out/gptq" reference.model=original

    All are compared with one reference, which has the settings that do not vary and quant=none, unless words that begin
    with "reference." say otherwise.
    """
    plan = _plan(words, variants, config_dir)
    settings = plan.settings
    results: dict[str, Any] = {}
    failures: dict[str, str] = {}
    with task_progress() as progress, Evaluation(evaluation_plan(settings, plan.tasks), progress) as evaluation:
        found = None if plan.reference is None else evaluation.run_reference(plan.reference)
        for name, config in plan.variants.items():
            done = attempt(partial(evaluation.run, config, name))
            if isinstance(done, Failure):
                failures[name] = done.reason
            else:
                results[name] = done
                # What has run is not lost if a later variant takes the process with it.
                _write(settings, results, found, failures)
    if results:
        print_variants(results, found)
    _write(settings, results, found, failures)
    if settings.plot is not None and results:
        draw_variants(results, Path(settings.plot))
    end_by_failures(failures)


@final
@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to run: the command's own settings, the tasks, the reference if perplexity is one, variants by name."""

    settings: EvalCompareSettings
    tasks: tuple[str, ...]
    reference: ComposedConfig | None
    variants: Mapping[str, ComposedConfig]


def _plan(words: Sequence[str], labelled: Sequence[str], config_dir: Path | None) -> _Plan:
    """Composes everything before the first model is loaded: a mistake in the last must not cost the others' time."""
    names, overrides = split_words(words)
    own, reference = split_reference(overrides)
    variants: dict[str, ComposedConfig] = {}
    common: list[str] = []
    for label, extra in map(_labelled, labelled) if labelled else [("", list[str]())]:
        for point in expand_sweep([*own, *extra], FILE_KEYS):
            name = " ".join([label, *point.changes]).strip() or "all"
            if name in variants:
                raise ConfigError(f"--variant: two variants are called {name!r}; name each of them once")
            variants[name] = compose_config(point.overrides, config_dir=config_dir, command=EvalCompareSettings)
            common = [word for word in point.overrides if word not in point.changes and word not in extra]
    first = next(iter(variants.values()))
    settings, tasks = first.extras_of(EvalCompareSettings), check_tasks(names, first)
    reference_config = None
    if "perplexity" in tasks:
        is_plain = not any(word.startswith("quant") for word in reference)
        changed = reference_overrides(common, [_UNQUANTIZED, *reference] if is_plain else reference)
        reference_config = compose_config(changed, config_dir=config_dir, command=EvalCompareSettings)
    elif reference:
        raise ConfigError("a reference is only of the task perplexity; leave it out, or add the word perplexity")
    configs = [each for each in (reference_config, *variants.values()) if each is not None]
    for config in configs:
        check_tasks(names, config)
        if config.extras != settings:
            raise ConfigError("settings of the evaluation itself must be equal for all variants; give each one value")
    traces = [each.engine.trace.file for each in configs]
    inputs = {"text": settings.text, "questions": settings.questions}
    check_output_files(inputs, {"output": settings.output, "plot": settings.plot}, traces)
    check_trace_targets(traces)
    if settings.plot is not None:
        check_plotting(Path(settings.plot))
    return _Plan(settings, tasks, reference_config, variants)


def _labelled(text: str) -> tuple[str, list[str]]:
    """The name and the overrides of a --variant."""
    label, colon, rest = text.partition(":")
    try:
        texts, overrides = split_words(shlex.split(rest))
    except ValueError as error:
        raise ConfigError(f"--variant {text!r}: {error}") from error
    if not colon or not label.strip() or "=" in label or texts or not overrides:
        raise ConfigError(f"--variant {text!r}: expected 'NAME: KEY=VALUE ...', e.g. 'small: quant=int8'")
    return label.strip(), overrides


def _write(
    settings: EvalCompareSettings, results: Mapping[str, Any], reference: Any, failures: Mapping[str, str]
) -> None:
    if settings.output is None:
        return
    found = {"variants": results, "failed": failures, "reference": reference, "provenance": provenance()}
    Path(settings.output).write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
