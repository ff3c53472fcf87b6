"""The shards of a layer whose plain weights are rounded as they come, until all are there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, final

import torch

from tokenloom.errors import ModelError
from tokenloom.interfaces.quant import LayerSpec
from tokenloom.models.rank_part import RankPart, rank_part

__all__ = ["RoundedShards"]

Rounded = TypeVar("Rounded")
"""What a plugin makes of a shard's weight."""


@final
class RoundedShards(Generic[Rounded]):
    """Takes a layer's parameters in any order, gives them back in the order of the spec."""

    def __init__(self, plugin: str, spec: LayerSpec, dtype: torch.dtype, device: torch.device) -> None:
        """`plugin` is its name, for messages; biases are kept in `dtype` on `device`."""
        self._plugin = plugin
        self._spec = spec
        self._dtype = dtype
        self._device = device
        self._weights: dict[str, Rounded] = {}
        self._biases: dict[str, torch.Tensor] = {}

    def load(
        self, shard: str, parameter: str, tensor: torch.Tensor, encode: Callable[[torch.Tensor, RankPart, str], Rounded]
    ) -> None:
        """Takes one parameter of a shard.

        Args:
            shard, parameter, tensor: as in `LinearWeights.load`.
            encode: rounds a floating weight [N, K] as a whole, so that it is the same for any number of ranks, and
                gives what this rank holds of it; the text says where it belongs, for messages.

        Raises:
            ModelError: the weight is not a plain one, or cannot be cut for so many ranks, or what `encode` raises.
        """
        where = f"quant={self._plugin}, layer {self._spec.name}, shard {shard}"
        part = rank_part(self._spec, shard)
        if parameter == "bias":
            bias = part.of_bias(tensor)
            if bias is not None:
                self._biases[shard] = bias.to(device=self._device, dtype=self._dtype)
            return
        if parameter != "weight" or not tensor.is_floating_point():
            raise ModelError(
                f"{where}: needs a plain 'weight' to round, got {parameter!r} of {tensor.dtype}; the checkpoint is "
                "quantized already: choose the quant plugin that reads its format"
            )
        self._weights[shard] = encode(tensor, part, where)

    def take(self) -> tuple[list[Rounded], torch.Tensor | None]:
        """Every shard's weight in order, and the joined bias [N] where this rank adds one; nothing is kept.

        Raises:
            ModelError: a shard has no weight.
        """
        names = [shard.name for shard in self._spec.shards]
        missing = [name for name in names if name not in self._weights]
        if missing:
            raise ModelError(f"quant={self._plugin}, layer {self._spec.name}: no weight came for {', '.join(missing)}")
        weights = [self._weights[name] for name in names]
        adds_bias = self._spec.has_bias and rank_part(self._spec, names[0]).adds_bias
        bias = torch.cat([self._biases[name] for name in names]) if adds_bias else None
        self._weights.clear()
        self._biases.clear()
        return weights, bias
