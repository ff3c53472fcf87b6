"""Writes a checkpoint's tensors as safetensors, in one file or in shards with an index."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.loader.weight_index import WEIGHT_FILES

__all__ = ["write_tensors", "write_weights"]

_STAGE = "writing weights"


def write_weights(
    checkpoint: Checkpoint,
    folder: Path,
    dtype: torch.dtype,
    max_shard_bytes: int,
    progress: Callable[[str, int, int], None],
) -> None:
    """Writes every tensor, as `dtype`.

    Args:
        checkpoint: read one tensor at a time; a shard is held in memory until it is full.
        folder: must be there, without weights.
        max_shard_bytes: most bytes of tensors in a file, unless one tensor alone has more.
        progress: is told (stage, tensors done, tensors in all).

    Raises:
        ModelError: a tensor cannot be read, or holds packed integers.
        OSError: the disk is full, or not writable.
    """
    names = checkpoint.tensor_names()
    write_tensors(names, lambda name: checkpoint.load(name, dtype), folder, max_shard_bytes, progress)


def write_tensors(
    names: Sequence[str],
    load: Callable[[str], torch.Tensor],
    folder: Path,
    max_shard_bytes: int,
    progress: Callable[[str, int, int], None],
) -> None:
    """Writes the tensors `names`, each as `load` gives it; the rest as in `write_weights`."""
    shards: list[list[str]] = []
    pending: dict[str, torch.Tensor] = {}
    total_bytes = pending_bytes = 0

    def flush() -> None:
        nonlocal pending, pending_bytes
        save_file(pending, folder / _part(len(shards)), metadata={"format": "pt"})
        shards.append(list(pending))
        pending, pending_bytes = {}, 0

    for done, name in enumerate(names):
        progress(_STAGE, done, len(names))
        tensor = load(name).contiguous()
        if pending and pending_bytes + tensor.nbytes > max_shard_bytes:
            flush()
        pending[name] = tensor
        pending_bytes += tensor.nbytes
        total_bytes += tensor.nbytes
    flush()
    progress(_STAGE, len(names), len(names))
    _name_shards(folder, shards, total_bytes)


def _part(number: int) -> str:
    return f"part-{number}.safetensors"


def _name_shards(folder: Path, shards: list[list[str]], total_bytes: int) -> None:
    """Gives the files their names, which hold how many there are."""
    single, index = WEIGHT_FILES[:2]
    if len(shards) == 1:
        (folder / _part(0)).rename(folder / single)
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        (folder / _part(number)).rename(folder / file)
        weight_map.update(dict.fromkeys(names, file))
    content = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / index).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
