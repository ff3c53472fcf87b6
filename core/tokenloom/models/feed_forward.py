"""The feed-forward part of a decoder layer: a gated network, activation(gate) * up, then down.

Source: Shazeer, GLU Variants Improve Transformer (2020).
"""

from __future__ import annotations

from typing import final

import torch

from tokenloom.model_config import ModelConfig
from tokenloom.models.layers import LayerFactory

__all__ = ["GatedFeedForward"]


@final
class GatedFeedForward:
    """The network of one layer, without the norms around it. `name` is its full name in the checkpoint."""

    def __init__(self, config: ModelConfig, factory: LayerFactory, name: str) -> None:
        hidden_size, size, has_bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        shards = {"gate_up_proj": 2 * size} if config.is_gate_up_fused else {"gate_proj": size, "up_proj": size}
        activations = {"silu": factory.ops.silu_and_mul, "gelu_tanh": factory.ops.gelu_tanh_and_mul}
        self._activate = activations[config.hidden_act]
        self._gate_up = factory.linear(f"{name}.gate_up_proj", hidden_size, shards, has_bias=has_bias, axis="output")
        self._down = factory.linear(
            f"{name}.down_proj", size, {"down_proj": hidden_size}, has_bias=has_bias, axis="input"
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, H], normed -> [T, H]."""
        return self._down.apply(self._activate(self._gate_up.apply(x)))
