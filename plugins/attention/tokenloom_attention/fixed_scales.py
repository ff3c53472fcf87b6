"""Fixed scales of keys and values: the setting, and rounding by them in plain PyTorch, for any layout of the cache."""

from __future__ import annotations

from typing import Literal

import torch

from tokenloom.errors import ConfigError
from tokenloom.interfaces.attention import KVScaleSource

__all__ = ["CODE_LIMITS", "KV_SCALES_DESCRIPTION", "round_by_scale", "scale_source"]

KV_SCALES_DESCRIPTION = (
    "Scales of rounded keys and values: token_head finds one for each token and head as it stores; checkpoint takes "
    "the checkpoint's own; else a file of tokenloom calibrate-kv."
)
_PER_TOKEN = "token_head"
CODE_LIMITS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""Largest magnitude of a quantized element, to which a head's largest one is scaled."""


def scale_source(plugin: str, kv_scales: str, kv_dtype: Literal["auto", "int8", "fp8_e4m3"]) -> KVScaleSource | None:
    """What the settings `kv_scales` and `kv_dtype` name.

    Raises:
        ConfigError: scales are named, but nothing is rounded.
    """
    if kv_scales == _PER_TOKEN:
        return None
    if kv_dtype == "auto":
        raise ConfigError(
            f"attention={plugin} attention.kv_scales={kv_scales} needs keys and values that are rounded, got "
            "attention.kv_dtype=auto; try attention.kv_dtype=int8, or attention.kv_scales=token_head"
        )
    return KVScaleSource(kv_scales, kv_dtype)


def round_by_scale(values: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounds to nearest; what is beyond the largest magnitude becomes it.

    Args:
        values: [T, Hkv, D].
        scale: fp32 [Hkv].
        dtype: int8 or float8_e4m3fn.

    Returns:
        [T, Hkv, D] of `dtype`.
    """
    limit = CODE_LIMITS[dtype]
    scaled = (values.float() / scale[:, None]).clamp_(-limit, limit)
    return (scaled.round_() if dtype == torch.int8 else scaled).to(dtype)
