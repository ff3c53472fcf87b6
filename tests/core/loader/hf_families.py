"""Tiny Hugging Face folders of every family, written without Transformers: random weights and a config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

__all__ = ["FAMILY_CONFIGS", "write_hf_family"]

_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 72,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
    "tie_word_embeddings": False,
}
_DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}

FAMILY_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "head_dim": 24, "rope_parameters": _DEFAULT_ROPE},
    "mistral": {"architectures": ["MistralForCausalLM"], "head_dim": 24, "sliding_window": None},
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    },
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 24, "rms_norm_eps": 1e-6},
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        "head_dim": 24,
        "num_hidden_layers": 3,
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 32,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3_text": {
        "architectures": ["Gemma3ForCausalLM"],
        "head_dim": 24,
        "num_hidden_layers": 7,
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 32,
        "query_pre_attn_scalar": 24,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "phi3": {
        "architectures": ["Phi3ForCausalLM"],
        "sliding_window": 47,
        "original_max_position_embeddings": 128,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
            "short_factor": [1.0, 1.05, 1.1, 1.15, 1.2, 1.25],
            "long_factor": [1.0, 1.5, 2.25, 4.0, 8.5, 16.0],
        },
    },
    "smollm3": {
        "architectures": ["SmolLM3ForCausalLM"],
        "num_hidden_layers": 5,
        "tie_word_embeddings": True,
        "no_rope_layer_interval": 4,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000000.0},
    },
}
"""What each family's config.json has beside the common sizes."""


def write_hf_family(
    folder: Path, family: str, changes: Mapping[str, Any] | None = None, *, dtype: torch.dtype = torch.float32
) -> Path:
    """Writes config.json (a None in `changes` drops the key) and one safetensors file; returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    merged = {"model_type": family, **_COMMON, **FAMILY_CONFIGS[family], **(changes or {})}
    config = {key: value for key, value in merged.items() if value is not None or key == "sliding_window"}
    config["dtype"] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(len(family))
    weights = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in _shapes(config).items()}
    save_file(weights, folder / "model.safetensors")
    return folder


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden = config["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        parts = {**_norms(config), **_projections(config)}
        shapes |= {f"model.layers.{layer}.{part}": shape for part, shape in parts.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def _norms(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    names = ["input_layernorm", "post_attention_layernorm"]
    if config["model_type"].startswith("gemma"):
        names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    norms: dict[str, tuple[int, ...]] = {f"{name}.weight": (config["hidden_size"],) for name in names}
    if config["model_type"] in ("qwen3", "gemma3_text"):
        norms |= {f"self_attn.{name}_norm.weight": (config["head_dim"],) for name in "qk"}
    return norms


def _projections(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = (config[key] * head_dim for key in ("num_attention_heads", "num_key_value_heads"))
    rows = {"q": queries, "k": keys, "v": keys}
    attention = {f"self_attn.{name}_proj": (size, hidden) for name, size in rows.items()}
    feed_forward = {"mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden)}
    if config["model_type"] == "phi3":
        attention = {"self_attn.qkv_proj": (queries + 2 * keys, hidden)}
        feed_forward = {"mlp.gate_up_proj": (2 * ffn, hidden)}
    attention["self_attn.o_proj"] = (hidden, queries)
    feed_forward["mlp.down_proj"] = (hidden, ffn)
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in (attention | feed_forward).items()}
    has_qkv_bias = config["model_type"] == "qwen2" or config.get("attention_bias", False)
    for name, (size, _) in (attention | feed_forward).items():
        is_output = name.endswith("o_proj") and config["model_type"] != "qwen2"
        is_biased = has_qkv_bias and (name.startswith("self_attn") and (is_output or not name.endswith("o_proj")))
        if is_biased or (name.startswith("mlp") and config.get("mlp_bias", False)):
            shapes[f"{name}.bias"] = (size,)
    return shapes
