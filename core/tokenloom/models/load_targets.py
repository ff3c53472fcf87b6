"""Where checkpoint tensors go: the loading side of a layer, apart from its running side in `layers.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import final

import torch

from tokenloom.interfaces.quant import LayerSpec, LinearWeights, Shard
from tokenloom.models.skip_list import part_names

__all__ = ["LoadTarget", "WeightsTarget"]


class LoadTarget(ABC):
    """Something that has tensors in the checkpoint. Tensors are named "<part>.<parameter>"."""

    @property
    @abstractmethod
    def parts(self) -> tuple[str, ...]:
        """The dotted names, without parameter, under which the checkpoint has its tensors."""

    @abstractmethod
    def required(self) -> tuple[str, ...]:
        """Full names of tensors that must come. What else a quantizer's format needs, the quantizer checks itself."""

    @abstractmethod
    def accepts(self, name: str) -> bool:
        """Whether the tensor `name`, which lies under one of `parts`, is one that it can take."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape that a tensor must have, or None where only the quantizer knows."""

    @property
    @abstractmethod
    def load_dtype(self) -> torch.dtype | None:
        """The dtype to read tensors in; None reads them as they are stored."""

    @property
    def stored_types(self) -> frozenset[str]:
        """Types of blocks to be handed over as they are stored, under the type's name in place of "weight"."""
        return frozenset()

    @abstractmethod
    def load(self, name: str, tensor: torch.Tensor) -> None:
        """Takes one tensor that `accepts` agreed to and that has the right shape."""

    @abstractmethod
    def finalize(self) -> None:
        """Called once, after the last tensor."""

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes of stored weights."""


@final
class WeightsTarget(LoadTarget):
    """A linear layer or an embedding: tensors go to its `LinearWeights`, shard by shard.

    Args:
        spec: the layer.
        weights: its storage, dense or a quantizer's.
        dense_dtype: the dtype of dense storage; None if a quantizer stores the layer.
        stored_types: those of the quantizer.
    """

    def __init__(
        self,
        spec: LayerSpec,
        weights: LinearWeights,
        dense_dtype: torch.dtype | None,
        stored_types: frozenset[str] = frozenset(),
    ) -> None:
        self._spec = spec
        self._weights = weights
        self._dense_dtype = dense_dtype
        self._stored_types = frozenset() if self._is_dense else stored_types
        self._shards: Mapping[str, Shard] = dict(zip(part_names(spec), spec.shards))

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self._shards)

    def required(self) -> tuple[str, ...]:
        parameters = [*(("weight",) if self._is_dense else ()), *(("bias",) if self._spec.has_bias else ())]
        return tuple(f"{part}.{parameter}" for part in self._shards for parameter in parameters)

    def accepts(self, name: str) -> bool:
        parameter = name.rpartition(".")[2]
        if parameter == "bias":
            return self._spec.has_bias
        return parameter == "weight" or not self._is_dense

    def shape(self, name: str) -> tuple[int, ...] | None:
        part, _, parameter = name.rpartition(".")
        num_rows = self._shards[part].out_features
        shapes: Mapping[str, tuple[int, ...]] = {"weight": (num_rows, self._spec.in_features), "bias": (num_rows,)}
        return shapes.get(parameter)

    @property
    def load_dtype(self) -> torch.dtype | None:
        return self._dense_dtype

    @property
    def stored_types(self) -> frozenset[str]:
        return self._stored_types

    def load(self, name: str, tensor: torch.Tensor) -> None:
        part, _, parameter = name.rpartition(".")
        self._weights.load(self._shards[part].name, parameter, tensor)

    def finalize(self) -> None:
        self._weights.finalize()

    @property
    def num_bytes(self) -> int:
        return self._weights.num_bytes

    @property
    def _is_dense(self) -> bool:
        return self._dense_dtype is not None
