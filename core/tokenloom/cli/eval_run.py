"""`tokenloom eval run`: tasks on one model, beside a reference if one is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tokenloom.bench.provenance import provenance
from tokenloom.cli.config_arguments import config_dir_option, split_words
from tokenloom.cli.eval_reference import reference_overrides, split_reference
from tokenloom.cli.eval_settings import EvalSettings, check_tasks, evaluation_plan
from tokenloom.cli.eval_tables import print_tasks
from tokenloom.cli.task_progress import task_progress
from tokenloom.compose import compose_config
from tokenloom.errors import ConfigError
from tokenloom.evaluation.evaluate import Evaluation
from tokenloom.output_files import check_output_files
from tokenloom.tracing.recorder import check_trace_targets

__all__ = ["run"]


@click.command()
@click.argument("words", nargs=-1, metavar="[TASK]... [KEY=VALUE]...")
@config_dir_option
def run(words: tuple[str, ...], config_dir: Path | None) -> None:
    """Run tasks on one model: perplexity (if none is named), multiple_choice, retrieval.

    For example: tokenloom eval perplexity quant=int8 text=book.txt output=int8.json

    Words that begin with "reference." name a second model that perplexity is compared with, token by token. It has the
    first one's settings but for these: tokenloom eval quant=int8 reference.quant=none reference.model.dtype=float32
    """
    names, overrides = split_words(words)
    own, reference = split_reference(overrides)
    config = compose_config(own, config_dir=config_dir, command=EvalSettings)
    settings, tasks = config.extras_of(EvalSettings), check_tasks(names, config)
    reference_config = None
    if reference:
        if "perplexity" not in tasks:
            raise ConfigError("a reference is only of the task perplexity; leave it out, or add the word perplexity")
        changed = reference_overrides(own, reference)
        reference_config = compose_config(changed, config_dir=config_dir, command=EvalSettings)
        check_tasks(names, reference_config)
    configs = [each for each in (reference_config, config) if each is not None]
    traces = [each.engine.trace.file for each in configs]
    check_output_files({"text": settings.text, "questions": settings.questions}, {"output": settings.output}, traces)
    check_trace_targets(traces)
    plan = evaluation_plan(settings, tasks)
    with task_progress() as progress, Evaluation(plan, progress) as evaluation:
        found = None if reference_config is None else evaluation.run_reference(reference_config)
        result: dict[str, Any] = {**evaluation.run(config), "reference": found, "provenance": provenance()}
    print_tasks(result)
    if settings.output is not None:
        Path(settings.output).write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
