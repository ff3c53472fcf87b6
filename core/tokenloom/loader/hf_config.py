"""From config.json of a Hugging Face folder with a Llama model to a ModelConfig, in old and new spellings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenloom.errors import ModelError
from tokenloom.loader.fields import MAX_LAYERS, Fields
from tokenloom.model_config import LinearScaling, Llama3Scaling, ModelConfig, RopeConfig, RopeScaling

__all__ = ["SUPPORTED_HF_ARCHITECTURES", "hf_config", "read_json"]

SUPPORTED_HF_ARCHITECTURES: dict[str, str] = {"llama": "LlamaForCausalLM"}
"""Class name in `architectures`, by `model_type`."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object. Raises ModelError naming the file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} must hold a JSON object, got {type(values).__name__}")
    return values


def hf_config(folder: Path, values: dict[str, Any], stored_dtype: str) -> ModelConfig:
    """Reads the config.

    Args:
        folder: the checkpoint; generation_config.json, if there, adds to the end-of-sequence ids.
        values: content of its config.json.
        stored_dtype: dtype of the embeddings, for files that state none.

    Raises:
        ModelError: naming the file and the key that is missing, wrong or not supported.
    """
    fields = Fields(values, folder / "config.json")
    _check_architecture(fields, values)
    hidden_size = fields.integer("hidden_size")
    num_layers = fields.integer("num_hidden_layers", maximum=MAX_LAYERS)
    num_heads = fields.integer("num_attention_heads")
    head_dim = _head_dim(fields, hidden_size, num_heads)
    return ModelConfig(
        architecture="llama",
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_heads),
        head_dim=head_dim,
        vocab_size=fields.integer("vocab_size"),
        max_position_embeddings=fields.integer("max_position_embeddings", 2048),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=_rope(fields, head_dim),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        attention_bias=fields.flag("attention_bias", False),
        mlp_bias=fields.flag("mlp_bias", False),
        hidden_act=fields.text("hidden_act", "silu"),
        windows=(None,) * num_layers,
        attn_soft_cap=None,
        final_soft_cap=None,
        bos_token_id=next(iter(fields.token_ids("bos_token_id")), None),
        eos_token_ids=_end_token_ids(folder, fields),
        dtype=fields.text("dtype", fields.text("torch_dtype", stored_dtype)),
    ).validated(str(fields.path))


def _check_architecture(fields: Fields, values: dict[str, Any]) -> None:
    model_type = fields.text("model_type")
    expected = SUPPORTED_HF_ARCHITECTURES.get(model_type)
    architectures = values.get("architectures") or [expected]
    if expected is None or expected not in architectures:
        supported = ", ".join(f"{name} ({kind})" for kind, name in SUPPORTED_HF_ARCHITECTURES.items())
        raise ModelError(
            f"{fields.path} describes a model of type {model_type!r} with architectures {architectures}; "
            f"supported are {supported}"
        )
    if fields.has("sliding_window") and fields.flag("use_sliding_window", True):
        raise ModelError(f"{fields.path} sets 'sliding_window', which a {model_type} model does not have")


def _head_dim(fields: Fields, hidden_size: int, num_heads: int) -> int:
    if not fields.has("head_dim") and hidden_size % num_heads != 0:
        raise ModelError(
            f"{fields.path}: 'hidden_size' {hidden_size} is not a multiple of 'num_attention_heads' {num_heads}, "
            "and 'head_dim' is absent"
        )
    return fields.integer("head_dim", max(1, hidden_size // num_heads))


def _rope(fields: Fields, head_dim: int) -> RopeConfig:
    # Newer files hold everything in `rope_parameters`; older ones have `rope_theta` beside an optional `rope_scaling`.
    rope = fields.group("rope_parameters") or fields.group("rope_scaling") or Fields({}, fields.path)
    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
    share = rope.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    return RopeConfig(theta, int(head_dim * share), _rope_scaling(rope, fields))


def _rope_scaling(rope: Fields, fields: Fields) -> RopeScaling | None:
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(rope.number("factor"))
    if kind == "llama3":
        return Llama3Scaling(
            factor=rope.number("factor"),
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
            original_max_position_embeddings=rope.integer("original_max_position_embeddings"),
        )
    raise ModelError(f"{fields.path}: rope type {kind!r} is not supported; supported are default, linear, llama3")


def _end_token_ids(folder: Path, fields: Fields) -> tuple[int, ...]:
    ids = fields.token_ids("eos_token_id")
    generation_path = folder / "generation_config.json"
    if generation_path.exists():
        ids += Fields(read_json(generation_path), generation_path).token_ids("eos_token_id")
    return tuple(dict.fromkeys(ids))
