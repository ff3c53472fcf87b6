"""The feed-forward part of a decoder layer: a gated network, activation(gate) * up, then down.

Source: Shazeer, GLU Variants Improve Transformer (2020).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast, final

import torch

from tokenloom.model_config import ModelConfig
from tokenloom.models.dense_weights import DenseLinear
from tokenloom.models.layers import LayerFactory, Linear
from tokenloom.ops.packed_linear import GatedAct
from tokenloom.ops.table import OpTable

__all__ = ["GatedFeedForward"]


@final
class GatedFeedForward:
    """The network of one layer, without the norms around it. `name` is its full name in the checkpoint."""

    def __init__(self, config: ModelConfig, factory: LayerFactory, name: str) -> None:
        hidden_size, size, has_bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        shards = {"gate_up_proj": 2 * size} if config.is_gate_up_fused else {"gate_proj": size, "up_proj": size}
        gate_up = factory.linear(f"{name}.gate_up_proj", hidden_size, shards, has_bias=has_bias, axis="output")
        self._enter = _gated_product(gate_up, cast(GatedAct, config.hidden_act), factory.ops)
        self._down = factory.linear(
            f"{name}.down_proj", size, {"down_proj": hidden_size}, has_bias=has_bias, axis="input"
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, H], normed -> [T, H]."""
        return self._down.apply(self._enter(x))


def _gated_product(gate_up: Linear, activation: GatedAct, ops: OpTable) -> Callable[[torch.Tensor], torch.Tensor]:
    """activation(gate) * up: one operation where the weights are dense, two where a quantizer multiplies."""
    if isinstance(gate_up.weights, DenseLinear):
        return partial(gate_up.weights.apply_gated, activation=activation)
    activate = {"silu": ops.silu_and_mul, "gelu_tanh": ops.gelu_tanh_and_mul}[activation]
    return lambda x: activate(gate_up.apply(x))
