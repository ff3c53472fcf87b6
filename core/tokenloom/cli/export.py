"""`tokenloom export`: a model of any source as a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import click
from pydantic import Field

from tokenloom.cli.config_arguments import split_words
from tokenloom.cli.sizes import size_text
from tokenloom.compose import compose_config
from tokenloom.errors import ConfigError, did_you_mean
from tokenloom.load_progress import load_progress
from tokenloom.settings_base import Settings

__all__ = ["ExportSettings", "export"]

_MODEL_KEYS = ("model", "model.source", "model.revision")


class ExportSettings(Settings):
    """Keys of `tokenloom export`."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto", description="Dtype of the tensors; auto keeps the checkpoint's, bfloat16 for a quantized GGUF."
    )
    max_shard_gb: Annotated[float, Field(gt=0, le=1e6)] = Field(
        default=5.0, description="Most gigabytes (10^9 bytes) of tensors in one file."
    )


@click.command()
@click.argument("words", nargs=-1, metavar="FOLDER [KEY=VALUE]...")
@click.option("--force", is_flag=True, help="Replace the model that FOLDER holds.")
def export(words: tuple[str, ...], force: bool) -> None:
    """Write a model as a Hugging Face folder: config, safetensors, tokenizer and chat template.

    So a GGUF file can be given to other engines. What such a folder cannot express exactly is refused.

    For example: tokenloom export model=hf:org/name#file.gguf exported dtype=bfloat16
    """
    texts, overrides = split_words(words)
    if len(texts) != 1:
        raise click.UsageError(f"expected one folder to write to, got {', '.join(map(repr, texts)) or 'none'}")
    _check_keys(overrides)
    composed = compose_config(overrides, command=ExportSettings)
    settings = composed.extras_of(ExportSettings)
    # Imported here, after what can be refused at once: torch takes a while.
    from tokenloom.loader.checkpoint import open_checkpoint
    from tokenloom.loader.export_folder import ExportOptions, export_folder
    from tokenloom.loader.export_target import check_source, check_target
    from tokenloom.loader.sources import resolve_model

    target, source = Path(texts[0]).expanduser(), composed.engine.model
    if Path(source.source).exists():  # any other source is a file of a cache, known once it is fetched
        check_source(Path(source.source), target)
    check_target(target.resolve(), is_replacing=force)
    checkpoint = open_checkpoint(resolve_model(source.source, revision=source.revision))
    options = ExportOptions(settings.dtype, int(settings.max_shard_gb * 1e9), is_replacing=force)
    try:
        with load_progress(None) as (report, _):
            written = export_folder(checkpoint, target, options, report)
    finally:
        checkpoint.close()
    for path in written:
        click.echo(f"wrote {target / path.name} ({size_text(path.stat().st_size)})")
    click.echo(f'\nNext:\n  tokenloom generate "The capital of France is" model={target}')


def _check_keys(overrides: Sequence[str]) -> None:
    """Nothing else of an engine's configuration has a meaning here."""
    known = (*_MODEL_KEYS, *ExportSettings.model_fields)
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~")
        if key not in known:
            raise ConfigError(
                f"override {override}: export has no key {key}.{did_you_mean(key, known)} Its keys: {', '.join(known)}"
            )
