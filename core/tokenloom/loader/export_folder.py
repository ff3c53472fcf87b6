"""Writes any checkpoint as a Hugging Face folder, so that other engines can read it: all of it, or nothing."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.errors import ModelError
from tokenloom.json_file import read_json
from tokenloom.loader.export_target import check_source, check_target, put_in_place
from tokenloom.loader.export_tokenizer import write_tokenizer
from tokenloom.loader.export_weights import write_weights
from tokenloom.loader.hf_checkpoint import HFCheckpoint
from tokenloom.model_config import ModelConfig
from tokenloom.models.registry import architecture_named

__all__ = ["ExportOptions", "export_folder", "write_settings"]


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """How to write.

    Attributes:
        dtype: of all tensors; auto takes the checkpoint's own, for quantized GGUF files bfloat16.
        max_shard_bytes: most bytes of tensors in one file.
        is_replacing: a folder that holds a model may be replaced.
    """

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    max_shard_bytes: int = 5 * 10**9
    is_replacing: bool = False


def export_folder(
    checkpoint: Checkpoint,
    target: Path,
    options: ExportOptions = ExportOptions(),
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> list[Path]:
    """Writes config.json, generation_config.json, the weights and the tokenizer.

    Everything is written beside `target` first, read back and compared; only then it takes its place. An interrupted
    export leaves nothing behind.

    Args:
        checkpoint: open; stays so.
        target: the folder; made if needed.
        progress: is told (stage, tensors done, tensors in all).

    Returns:
        The files that were written.

    Raises:
        ModelError: `target` may not be written to; the weights are quantized; or config or tokenizer have no exact
            form in such a folder.
    """
    target = target.resolve()
    check_source(checkpoint.path, target)
    check_target(target, is_replacing=options.is_replacing)
    if checkpoint.quantization is not None:
        method = checkpoint.quantization.get("quant_method", "unknown")
        raise ModelError(
            f"{checkpoint.path} holds quantized weights (quant_method={method!r}), which are already in the form that "
            "other engines read; only plain weights and GGUF files are exported"
        )
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
            folder = Path(scratch, "new")
            folder.mkdir()
            _write(checkpoint, folder, options, progress)
            put_in_place(folder, target, Path(f"{scratch}-old"), is_replacing=options.is_replacing)
    except OSError as error:
        raise ModelError(f"cannot write {target}: {error}") from error
    return sorted(target.iterdir())


def _write(
    checkpoint: Checkpoint, folder: Path, options: ExportOptions, progress: Callable[[str, int, int], None]
) -> None:
    dtype = checkpoint.config.dtype if options.dtype == "auto" else options.dtype
    config = replace(checkpoint.config, dtype=dtype)
    write_settings(checkpoint, config, folder)  # before the weights, which take long: it may be refused
    write_weights(checkpoint, folder, getattr(torch, dtype), options.max_shard_bytes, progress)
    for file in folder.iterdir():  # safetensors makes files that only their owner may read
        shutil.copymode(folder / "config.json", file)
    _check_written(checkpoint, config, folder)


def write_settings(
    checkpoint: Checkpoint, config: ModelConfig, folder: Path, quantization: Mapping[str, Any] | None = None
) -> None:
    """Writes everything but weights: config.json, generation_config.json and the tokenizer.

    Args:
        checkpoint: where the tokenizer and generation_config.json come from.
        config: what config.json is to say.
        folder: must be there.
        quantization: its `quantization_config`, if the weights are to be quantized.

    Raises:
        ModelError: config or tokenizer have no exact form in such a folder.
    """
    values = architecture_named(config.architecture).config_json(config)
    if quantization is not None:
        values = {**values, "quantization_config": dict(quantization)}
    _write_json(folder / "config.json", values)
    _write_json(folder / "generation_config.json", _generation_config(checkpoint))
    write_tokenizer(checkpoint.tokenizer_source(), config, folder)


def _generation_config(checkpoint: Checkpoint) -> dict[str, Any]:
    own = checkpoint.path / "generation_config.json"
    if own.is_file():
        return read_json(own)
    ids = list(checkpoint.config.eos_token_ids)
    values = {"bos_token_id": checkpoint.config.bos_token_id, "eos_token_id": ids[0] if len(ids) == 1 else ids or None}
    return {key: value for key, value in values.items() if value is not None}


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _check_written(checkpoint: Checkpoint, config: ModelConfig, folder: Path) -> None:
    """Reads the folder as anybody would, and compares."""
    written = HFCheckpoint(folder)
    try:
        lost = [
            field.name
            for field in fields(ModelConfig)
            if getattr(written.config, field.name) != getattr(config, field.name)
        ]
        if lost:
            raise ModelError(f"{checkpoint.path}: config.json cannot express this model's {', '.join(lost)}")
        missing = set(checkpoint.tensor_names()) ^ set(written.tensor_names())
        assert not missing, f"tensors differ: {sorted(missing)[:3]}"
    finally:
        written.close()
