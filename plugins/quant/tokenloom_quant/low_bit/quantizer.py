"""The quantizer of formats that store every linear layer as codes, and embedding and head when asked to."""

from __future__ import annotations

from typing import final

from tokenloom.interfaces.quant import LayerSpec, QuantContext, Quantizer
from tokenloom.ops.weight_memory import WeightMemory
from tokenloom_quant.low_bit.kernels import load_kernels
from tokenloom_quant.low_bit.layers import LowBitEmbedding, LowBitFormat, LowBitLinear

__all__ = ["LowBitQuantizer"]

_HEAD = "lm_head"


@final
class LowBitQuantizer(Quantizer):
    """Makes layers of one format.

    Args:
        weight_format: how weights are stored.
        context: as in the contract.
        include_embedding: whether embedding and head are covered.
        fingerprint: names method and settings.
        head_format: how embedding and head are stored; None stands for `weight_format`.

    Raises:
        NativeBuildError: the products cannot be built on this machine.
    """

    def __init__(
        self,
        weight_format: LowBitFormat,
        context: QuantContext,
        *,
        include_embedding: bool,
        fingerprint: str,
        head_format: LowBitFormat | None = None,
    ) -> None:
        load_kernels()  # before any weight is read
        self._format = weight_format
        self._head_format = head_format or weight_format
        self._dtype = context.dtype
        self._include_embedding = include_embedding
        self._fingerprint = fingerprint
        self._memory = WeightMemory()

    def covers(self, spec: LayerSpec) -> bool:
        if spec.kind == "linear" and spec.name != _HEAD:
            return True
        return self._include_embedding and spec.kind in ("linear", "embedding")

    def create_linear(self, spec: LayerSpec) -> LowBitLinear:
        weight_format = self._head_format if spec.name == _HEAD else self._format
        return LowBitLinear(spec, weight_format, self._dtype, self._memory)

    def create_embedding(self, spec: LayerSpec) -> LowBitEmbedding:
        return LowBitEmbedding(spec, self._head_format, self._dtype, self._memory)

    @property
    def fingerprint(self) -> str:
        return self._fingerprint
