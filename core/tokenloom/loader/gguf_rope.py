"""From the rope keys and tensors of a GGUF file to `rope_parameters` of a config.json."""

from __future__ import annotations

import math
from typing import Any

import torch

from tokenloom.errors import ModelError
from tokenloom.loader.gguf import GGUFTensorInfo
from tokenloom.loader.gguf_dequant import dequantize
from tokenloom.loader.gguf_parts import GGUFParts
from tokenloom.models.gguf_layout import GGUFFacts, shortest_decimal

__all__ = ["ROPE_TENSORS", "has_rope_divisors", "rope_divisors", "rope_parameters"]

_DIVISORS = "rope_freqs.weight"
_SHORT, _LONG = "rope_factors_short.weight", "rope_factors_long.weight"
ROPE_TENSORS: tuple[str, ...] = (_DIVISORS, _SHORT, _LONG)
"""Tensors that belong to the config and are no weights of a layer."""


def rope_parameters(facts: GGUFFacts, file: GGUFParts, head_dim: int, *, whole_heads: bool) -> dict[str, Any]:
    """The rope of layers with full attention, which for most families is that of all.

    Args:
        facts: the metadata.
        file: holds the factors of LongRoPE as tensors.
        head_dim: size of a head.
        whole_heads: the family rotates all of a head, or its files cannot say which rows a part of one means.

    Raises:
        ModelError: naming the key or the tensor.
    """
    rotary_dim = facts.integer("rope.dimension_count", head_dim)
    if whole_heads and rotary_dim != head_dim:
        raise ModelError(
            f"{facts.path}: {facts.key('rope.dimension_count')!r} is {rotary_dim}, but only the full head size "
            f"{head_dim} is supported"
        )
    base = {
        "rope_theta": facts.number("rope.freq_base", 10000.0),
        "partial_rotary_factor": _share(rotary_dim, head_dim),
    }
    if has_rope_divisors(file):  # they already hold the effect of any scaling that the metadata names
        return {"rope_type": "default", **base}
    return {**base, **_scaling(facts, file, rotary_dim)}


def has_rope_divisors(file: GGUFParts) -> bool:
    return _DIVISORS in file.tensors


def rope_divisors(file: GGUFParts, rotary_dim: int) -> tuple[float, ...] | None:
    """One divisor for each frequency, or None where the file has none."""
    return _factors(file, _DIVISORS, rotary_dim) if has_rope_divisors(file) else None


def _share(rotary_dim: int, head_dim: int) -> float:
    """`partial_rotary_factor`: the share that gives `rotary_dim` again when it is multiplied and rounded down."""
    share = rotary_dim / head_dim
    return share if int(head_dim * share) == rotary_dim else math.nextafter(share, math.inf)


def _scaling(facts: GGUFFacts, file: GGUFParts, rotary_dim: int) -> dict[str, Any]:
    has_factor = facts.value("rope.scaling.factor") is not None
    kind = facts.text("rope.scaling.type", "linear" if has_factor else "none")
    if _SHORT in file.tensors or _LONG in file.tensors or kind == "longrope":
        return _longrope(facts, file, rotary_dim)
    if kind == "none":
        legacy = facts.number("rope.scale_linear", 1.0)
        return {"rope_type": "default"} if legacy == 1.0 else {"rope_type": "linear", "factor": legacy}
    if kind == "linear":
        return {"rope_type": "linear", "factor": facts.number("rope.scaling.factor")}
    if kind == "yarn":
        return _yarn(facts)
    raise ModelError(
        f"{facts.path}: {facts.key('rope.scaling.type')!r} is {kind!r}; supported are none, linear, yarn, longrope"
    )


def _yarn(facts: GGUFFacts) -> dict[str, Any]:
    values: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": facts.number("rope.scaling.factor"),
        "original_max_position_embeddings": _original_length(facts),
    }
    # Converters copy these from config.json under the names that it has there.
    names = {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow", "yarn_attn_factor": "attention_factor"}
    for gguf_name, name in names.items():
        if facts.value(f"rope.scaling.{gguf_name}") is not None:
            values[name] = facts.number(f"rope.scaling.{gguf_name}")
    return values


def _longrope(facts: GGUFFacts, file: GGUFParts, rotary_dim: int) -> dict[str, Any]:
    original = _original_length(facts)
    values: dict[str, Any] = {
        "rope_type": "longrope",
        "short_factor": [shortest_decimal(factor) for factor in _factors(file, _SHORT, rotary_dim)],
        "long_factor": [shortest_decimal(factor) for factor in _factors(file, _LONG, rotary_dim)],
        "original_max_position_embeddings": original,
    }
    if facts.value("rope.scaling.attn_factor") is not None:
        stated = facts.number("rope.scaling.attn_factor")
        usual = _longrope_attention_factor(facts.integer("context_length"), original)
        # The usual one is left to the reader, who computes it in full precision; the file has it in float32.
        if not math.isclose(stated, usual, rel_tol=1e-6):
            values["attention_factor"] = stated
    return values


def _longrope_attention_factor(length: int, original: int) -> float:
    stretch = length / original
    return math.sqrt(1.0 + math.log(stretch) / math.log(original)) if stretch > 1.0 and original > 1 else 1.0


def _original_length(facts: GGUFFacts) -> int:
    return facts.integer("rope.scaling.original_context_length", facts.integer("context_length"))


def _factors(file: GGUFParts, name: str, rotary_dim: int) -> tuple[float, ...]:
    info: GGUFTensorInfo | None = file.tensors.get(name)
    if info is None:
        raise ModelError(f"{file.path} lacks the tensor {name!r}, which its rope scaling 'longrope' needs")
    if info.shape != (rotary_dim // 2,):
        raise ModelError(
            f"{file.file_of(name)}: tensor {name!r} has shape {list(info.shape)}; expected [{rotary_dim // 2}]"
        )
    values: list[float] = dequantize(file.raw(name), info.block_type, torch.float32)[0].tolist()
    return tuple(values)
