"""What Gemma 2 and 3 share in config.json."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError
from tokenloom.model_config import ModelConfig
from tokenloom.models.config_fields import read_layer_types, read_window, windows_of
from tokenloom.models.config_json import base_json

__all__ = ["GEMMA_KEYS", "gemma_json", "read_cap", "read_gemma", "read_gemma_windows"]

GEMMA_KEYS = frozenset(
    {
        "attention_bias",
        "final_logit_softcapping",
        "hidden_activation",
        "layer_types",
        "query_pre_attn_scalar",
        "sliding_window",
    }
)
_DEFAULT_SCALAR = 256
_DEFAULT_WINDOW = 4096


def read_gemma(fields: Fields, config: ModelConfig) -> ModelConfig:
    """`config` with what makes it a Gemma: norms, embedding scale, softmax scale, biases."""
    has_bias = fields.flag("attention_bias", False)
    scalar = fields.number("query_pre_attn_scalar", _DEFAULT_SCALAR)
    if scalar <= 0.0:
        raise ModelError(f"{fields.path}: 'query_pre_attn_scalar' must be positive, got {scalar}")
    return replace(
        config,
        has_post_norms=True,
        norm_offset=1.0,
        embedding_scale=math.sqrt(config.hidden_size),
        softmax_scale=None if scalar == config.head_dim else scalar**-0.5,
        qkv_bias=has_bias,
        output_bias=has_bias,
    )


def read_gemma_windows(fields: Fields, num_layers: int, slides: Callable[[int], bool]) -> tuple[int | None, ...]:
    """The window of each layer; `slides` decides where there is no `layer_types`."""
    types = read_layer_types(fields, num_layers) or tuple(
        "sliding_attention" if slides(index) else "full_attention" for index in range(num_layers)
    )
    return windows_of(fields, types, read_window(fields, _DEFAULT_WINDOW))


def read_cap(fields: Fields, key: str, default: float | None) -> float | None:
    """A soft cap; null is none, and an absent key stands for `default`."""
    if not fields.has(key):
        return None if fields.is_null(key) else default
    return fields.number(key)


def gemma_json(config: ModelConfig, model_type: str, class_name: str) -> dict[str, Any]:
    """The keys that both have, without the rotary embedding.

    Raises:
        ModelError: the softmax scale is not 1 / sqrt of a whole number, the only thing that the file can say.
    """
    scale = config.softmax_scale
    scalar = config.head_dim if scale is None else round(scale**-2)
    if scale is not None and not math.isclose(scalar**-0.5, scale, rel_tol=1e-6):
        raise ModelError(
            f"a config.json of {model_type} cannot express softmax_scale={scale}: it is not 1 / sqrt of a whole number"
        )
    base = base_json(config, model_type, class_name)
    window = next((window for window in config.windows if window is not None), None)
    return {
        **base,
        "hidden_activation": base["hidden_act"],
        "query_pre_attn_scalar": scalar,
        "final_logit_softcapping": config.final_soft_cap,
        "sliding_window": window,
        "layer_types": ["full_attention" if entry is None else "sliding_attention" for entry in config.windows],
        "attention_bias": config.qkv_bias,
    }
