"""The names under which a Hugging Face folder has its weights, and the index of shards. Imports no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenloom.errors import ModelError

__all__ = ["WEIGHT_FILES", "has_weights", "read_index"]

WEIGHT_FILES: tuple[str, ...] = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""The first of these that exists counts, as in Transformers: one file before shards, safetensors before pickles."""


def has_weights(folder: Path) -> bool:
    """Whether the folder has one of `WEIGHT_FILES`."""
    return any((folder / name).exists() for name in WEIGHT_FILES)


def read_index(path: Path) -> dict[str, str]:
    """The `weight_map` of an index: {tensor: file name}.

    Raises:
        ModelError: it is damaged, names a tensor twice, or names something that is no file of its own folder.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unique)
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    weight_map = values.get("weight_map") if isinstance(values, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{path} lacks the object 'weight_map'")
    for name, shard in weight_map.items():
        # A shard may be a symbolic link, as in caches; its name may not lead anywhere.
        if not isinstance(shard, str) or shard in ("", ".", "..") or set(shard) & set("/\\\0"):
            raise ModelError(f"{path}: tensor {name!r} must name a file of this folder, got {shard!r}")
    return weight_map


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it names {next(name for name in names if names.count(name) > 1)!r} twice")
    return values
