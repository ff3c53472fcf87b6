"""`tokenloom quantize`: a model as a quantized checkpoint, in a format that other engines read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from tokenloom.cli.config_arguments import split_words
from tokenloom.cli.console import print_table
from tokenloom.cli.quantize_settings import MODEL_KEYS, QuantizeSettings, check_settings, plan_of
from tokenloom.cli.sizes import size_text
from tokenloom.cli.task_progress import task_progress
from tokenloom.compose import compose_config
from tokenloom.errors import ConfigError, did_you_mean

__all__ = ["quantize"]

_NUM_WORST = 5


@click.command()
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--force", is_flag=True, help="Replace the model that the output folder holds.")
@click.option("--restart", is_flag=True, help="Forget an unfinished run of the same output.")
def quantize(words: tuple[str, ...], force: bool, restart: bool) -> None:
    """Write a model as a quantized checkpoint: rtn, gptq, awq or smoothquant.

    For example: tokenloom quantize method=gptq bits=4 group_size=128 output=small

    A run that was interrupted goes on where it was if it is started again with the same words.
    """
    texts, overrides = split_words(words)
    if texts:
        raise click.UsageError(f"expected key=value, got {', '.join(map(repr, texts))}; the folder is output=FOLDER")
    _check_keys(overrides)
    composed = compose_config(overrides, command=QuantizeSettings)
    settings = composed.extras_of(QuantizeSettings)
    check_settings(composed)
    # Imported here, after what can be refused at once: torch takes a while.
    from tokenloom.cli.quantize_result import judge, told_before
    from tokenloom.loader.checkpoint import open_checkpoint
    from tokenloom.loader.export_target import check_target
    from tokenloom.loader.sources import resolve_model
    from tokenloom.quantization.make import quantize_checkpoint
    from tokenloom.quantization.work_folder import forget_work

    target, source = Path(settings.output), composed.engine.model
    check_target(target.resolve(), is_replacing=force)
    plan = plan_of(settings)
    checkpoint = open_checkpoint(resolve_model(source.source, revision=source.revision))
    told_before(checkpoint)
    try:
        if restart:
            forget_work(target.resolve())
        with task_progress() as progress:
            made = quantize_checkpoint(checkpoint, target, plan, progress, is_replacing=force)
            if settings.evaluate is not None:
                original = [word for word in overrides if word.partition("=")[0] in MODEL_KEYS]
                judge(original, target, settings.evaluate, checkpoint.config.max_position_embeddings, progress)
    finally:
        checkpoint.close()
    if made.num_resumed:
        click.echo(f"went on behind {made.num_resumed} finished layers")
    for path in made.files:
        click.echo(f"wrote {target / path.name} ({size_text(path.stat().st_size)})")
    judged = sorted(
        (report for report in made.reports if report.error is not None), key=lambda each: -(each.error or 0)
    )
    if judged:
        rows = [(report.name, f"{report.error:.3g}", report.note) for report in judged[:_NUM_WORST]]
        print_table(("most changed output", "share of its mean square", "remark"), rows)
    click.echo(f'\nNext:\n  tokenloom generate "The capital of France is" model={target} quant=auto')


def _check_keys(overrides: Sequence[str]) -> None:
    """Nothing else of an engine's configuration has a meaning here."""
    known = (*MODEL_KEYS, *QuantizeSettings.model_fields)
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~")
        if key not in known:
            raise ConfigError(
                f"override {override}: quantize has no key {key}.{did_you_mean(key, known)} Its keys: "
                f"{', '.join(known)}"
            )
