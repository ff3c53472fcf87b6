"""Writes the config.json of a model in the older spelling, which old and new versions of Transformers both read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError
from tokenloom.model_config import ModelConfig
from tokenloom.models.architecture import Architecture
from tokenloom.models.config_fields import ACTIVATIONS
from tokenloom.models.rope_fields import rope_json

__all__ = ["base_json", "checked_json", "shared_rope_json"]

_FROM_ELSEWHERE = ("architecture", "bos_token_id", "dtype", "eos_token_ids")
_FUSED_NAMES = {
    "is_qkv_fused": "model.layers.0.self_attn.qkv_proj.weight",
    "is_gate_up_fused": "model.layers.0.mlp.gate_up_proj.weight",
}


def base_json(config: ModelConfig, model_type: str, class_name: str) -> dict[str, Any]:
    """The keys that all families have, without the rotary embedding."""
    words = {meaning: word for word, meaning in reversed(ACTIVATIONS.items())}
    return {
        "architectures": [class_name],
        "model_type": model_type,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": words[config.hidden_act],
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "tie_word_embeddings": config.tie_word_embeddings,
        "torch_dtype": config.dtype,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "pad_token_id": None,
    }


def shared_rope_json(config: ModelConfig) -> dict[str, Any]:
    """The keys of the rotary embedding, where all layers that have one share it.

    Raises:
        ModelError: they do not.
    """
    ropes = set(config.ropes) - {None}
    if len(ropes) != 1:
        raise ModelError(
            f"a config.json of {config.architecture} holds one rotary embedding; this model has {len(ropes)}"
        )
    (rope,) = ropes
    assert rope is not None
    return rope_json(rope, config.head_dim, config.max_position_embeddings)


def checked_json(architecture: Architecture, config: ModelConfig, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `values`, after reading them back.

    Raises:
        ModelError: naming what of `config` the file cannot say, and would therefore lose.
    """
    tensor_names = [name for flag, name in _FUSED_NAMES.items() if getattr(config, flag)]
    found = architecture.read_config(Fields(values, Path("config.json")), tensor_names)
    found = replace(found, **{name: getattr(config, name) for name in _FROM_ELSEWHERE})
    lost = [item.name for item in dataclass_fields(config) if getattr(found, item.name) != getattr(config, item.name)]
    if lost:
        raise ModelError(
            f"a config.json of model_type {values['model_type']!r} cannot express this model's {', '.join(lost)}"
        )
    return dict(values)
