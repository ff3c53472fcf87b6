"""Weights in the activation dtype, packed as the operations want them: what a layer has that no quantizer covers.

Of a layer that is split over ranks, the part of one rank.
"""

from __future__ import annotations

from typing import final

import torch

from tokenloom.interfaces.quant import EmbeddingWeights, LayerSpec, LinearWeights
from tokenloom.models.rank_part import rank_part
from tokenloom.ops.packed_linear import GatedAct, PackedLinear, PlainLinear
from tokenloom.ops.table import OpTable

__all__ = ["DenseEmbedding", "DenseLinear"]


@final
class DenseLinear(LinearWeights):
    """One matrix [N, K], its shards below each other, and a bias [N] where the spec has one."""

    def __init__(self, spec: LayerSpec, dtype: torch.dtype, device: torch.device, ops: OpTable) -> None:
        self._spec = spec
        self._dtype = dtype
        self._device = device
        self._pack = ops.pack_linear
        self._parts = {shard.name: rank_part(spec, shard.name) for shard in spec.shards}
        self._parameters: dict[str, torch.Tensor] = {}  # "weight" and "bias", until finalize
        self._packed: PackedLinear = PlainLinear(torch.empty(0), None)

    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        assert parameter in ("weight", "bias"), f"{self._spec.name}: no parameter {parameter!r} in a dense layer"
        assert shard in self._parts, f"{self._spec.name} has no shard {shard!r}"
        part = self._parts[shard]
        values = part.of_weight(tensor) if parameter == "weight" else part.of_bias(tensor)
        if values is None:
            return
        if len(self._parts) == 1:
            self._parameters[parameter] = values.to(device=self._device, dtype=self._dtype)
            return
        if parameter not in self._parameters:
            shape = (sum(len(each.rows) for each in self._parts.values()), *values.shape[1:])
            self._parameters[parameter] = torch.empty(shape, dtype=self._dtype, device=self._device)
        start = 0
        for name, each in self._parts.items():
            if name == shard:
                self._parameters[parameter][start : start + len(each.rows)].copy_(values)
                return
            start += len(each.rows)

    def finalize(self) -> None:
        self._packed = self._pack(self._parameters["weight"], self._parameters.get("bias"))
        self._parameters.clear()

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self._packed.apply(x)

    def apply_float32(self, x: torch.Tensor) -> torch.Tensor:
        """What `apply` gives, as fp32, and without rounding where the operations can."""
        return self._packed.apply_float32(x)

    def apply_gated(self, x: torch.Tensor, activation: GatedAct) -> torch.Tensor:
        """activation(first half of the columns of `apply`) * the second half."""
        return self._packed.apply_gated(x, activation)

    @property
    def num_bytes(self) -> int:
        return self._packed.num_bytes


@final
class DenseEmbedding(EmbeddingWeights):
    """A table [vocabulary, hidden size]; where it is tied, `apply` multiplies by it, and it is packed for that."""

    def __init__(self, spec: LayerSpec, dtype: torch.dtype, device: torch.device, ops: OpTable) -> None:
        self._spec = spec
        self._dtype = dtype
        self._device = device
        self._part = rank_part(spec, spec.shards[0].name)
        self._pack = ops.pack_linear if spec.tied else PlainLinear
        self._table: torch.Tensor | None = None  # until finalize
        self._packed: PackedLinear = PlainLinear(torch.empty(0), None)

    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        assert parameter == "weight", f"{self._spec.name}: no parameter {parameter!r} of {shard!r} in a dense embedding"
        self._table = self._part.of_weight(tensor).to(device=self._device, dtype=self._dtype)

    def finalize(self) -> None:
        assert self._table is not None, f"{self._spec.name} was not loaded"
        self._packed, self._table = self._pack(self._table, None), None

    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._part.looked_up(token_ids, self._packed.rows)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self._packed.apply(x)

    def apply_float32(self, x: torch.Tensor) -> torch.Tensor:
        """What `apply` gives, as fp32, and without rounding where the operations can."""
        return self._packed.apply_float32(x)

    @property
    def num_bytes(self) -> int:
        return self._packed.num_bytes
