"""Llama written out in fp64, one token matrix at a time, straight from config.json and the tensors of a folder."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

__all__ = ["reference_logits"]


def reference_logits(folder: Path, token_ids: Sequence[int]) -> torch.Tensor:
    """Logits of every position: [T, V], fp64."""
    config = json.loads((folder / "config.json").read_text())
    weights = {name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()}
    eps = float(config["rms_norm_eps"])
    x = weights["model.embed_tokens.weight"][list(token_ids)]  # [T, H]
    for layer in range(config["num_hidden_layers"]):
        own = {
            name.removeprefix(f"model.layers.{layer}."): tensor
            for name, tensor in weights.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        x = x + _attention(_norm(x, own["input_layernorm.weight"], eps), own, config)
        normed = _norm(x, own["post_attention_layernorm.weight"], eps)
        gate = _linear(normed, own, "mlp.gate_proj")
        gated = gate * torch.sigmoid(gate) * _linear(normed, own, "mlp.up_proj")
        x = x + _linear(gated, own, "mlp.down_proj")
    head = weights["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return _norm(x, weights["model.norm.weight"], eps) @ head.T


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def _linear(x: torch.Tensor, weights: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    result = x @ weights[f"{name}.weight"].T
    bias = weights.get(f"{name}.bias")
    return result if bias is None else result + bias


def _attention(x: torch.Tensor, weights: dict[str, torch.Tensor], config: dict[str, Any]) -> torch.Tensor:
    num_tokens, head_dim = x.shape[0], config["head_dim"]
    angles = torch.arange(num_tokens).double().unsqueeze(1) * _frequencies(config)  # [T, D / 2]
    is_future = torch.ones(num_tokens, num_tokens, dtype=torch.bool).triu(1)
    queries, keys, values = (_linear(x, weights, f"self_attn.{part}_proj") for part in "qkv")
    outputs = []
    for head in range(config["num_attention_heads"]):
        kv_head = head * config["num_key_value_heads"] // config["num_attention_heads"]
        query = _rotate(queries[:, head * head_dim : (head + 1) * head_dim], angles)
        key = _rotate(keys[:, kv_head * head_dim : (kv_head + 1) * head_dim], angles)
        scores = (query @ key.T / math.sqrt(head_dim)).masked_fill(is_future, -torch.inf)
        outputs.append(scores.softmax(-1) @ values[:, kv_head * head_dim : (kv_head + 1) * head_dim])
    return _linear(torch.cat(outputs, -1), weights, "self_attn.o_proj")


def _rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _frequencies(config: dict[str, Any]) -> torch.Tensor:
    head_dim = config["head_dim"]
    scaling = config["rope_scaling"] or {"rope_type": "default"}
    frequencies = []
    for pair in range(head_dim // 2):
        frequency = config["rope_theta"] ** (-2 * pair / head_dim)
        if scaling["rope_type"] == "linear":
            frequency /= scaling["factor"]
        if scaling["rope_type"] == "llama3":
            frequency = _llama3(frequency, scaling)
        frequencies.append(frequency)
    return torch.tensor(frequencies, dtype=torch.float64)


def _llama3(frequency: float, scaling: dict[str, float]) -> float:
    context, wavelength = scaling["original_max_position_embeddings"], 2 * math.pi / frequency
    if wavelength < context / scaling["high_freq_factor"]:
        return frequency
    if wavelength > context / scaling["low_freq_factor"]:
        return frequency / scaling["factor"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = (context / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / scaling["factor"] + smooth * frequency
