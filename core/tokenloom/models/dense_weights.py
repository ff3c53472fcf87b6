"""Weights stored as they are, in the activation dtype: what every layer has that no quantizer covers."""

from __future__ import annotations

from typing import final

import torch
from torch.nn import functional

from tokenloom.interfaces.quant import EmbeddingWeights, LayerSpec, LinearWeights
from tokenloom.ops.table import OpTable

__all__ = ["DenseEmbedding", "DenseLinear"]


@final
class DenseLinear(LinearWeights):
    """One matrix [N, K], its shards below each other, and a bias [N] where the spec has one."""

    def __init__(self, spec: LayerSpec, dtype: torch.dtype, device: torch.device, ops: OpTable) -> None:
        self._spec = spec
        self._dtype = dtype
        self._device = device
        self._linear = ops.linear
        self._parameters: dict[str, torch.Tensor] = {}  # "weight" and "bias", complete after finalize
        self._weight = torch.empty(0)
        self._bias: torch.Tensor | None = None

    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        assert parameter in ("weight", "bias"), f"{self._spec.name}: no parameter {parameter!r} in a dense layer"
        if len(self._spec.shards) == 1:
            self._parameters[parameter] = tensor.to(device=self._device, dtype=self._dtype)
            return
        if parameter not in self._parameters:
            shape = (self._spec.out_features, *tensor.shape[1:])
            self._parameters[parameter] = torch.empty(shape, dtype=self._dtype, device=self._device)
        start = 0
        for part in self._spec.shards:
            if part.name == shard:
                self._parameters[parameter][start : start + part.out_features].copy_(tensor)
                return
            start += part.out_features
        raise AssertionError(f"{self._spec.name} has no shard {shard!r}")

    def finalize(self) -> None:
        self._weight = self._parameters["weight"]
        self._bias = self._parameters.get("bias")

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear(x, self._weight, self._bias)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._parameters.values())


@final
class DenseEmbedding(EmbeddingWeights):
    """A table [vocabulary, hidden size]; where it is tied, `apply` multiplies by it."""

    def __init__(self, spec: LayerSpec, dtype: torch.dtype, device: torch.device, ops: OpTable) -> None:
        self._spec = spec
        self._dtype = dtype
        self._device = device
        self._linear = ops.linear
        self._table = torch.empty(0)

    def load(self, shard: str, parameter: str, tensor: torch.Tensor) -> None:
        assert parameter == "weight", f"{self._spec.name}: no parameter {parameter!r} of {shard!r} in a dense embedding"
        self._table = tensor.to(device=self._device, dtype=self._dtype)

    def finalize(self) -> None:
        assert self._table.ndim == 2, f"{self._spec.name} was not loaded"

    def lookup(self, token_ids: torch.Tensor) -> torch.Tensor:
        return functional.embedding(token_ids, self._table)

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear(x, self._table, None)

    @property
    def num_bytes(self) -> int:
        return self._table.nbytes
