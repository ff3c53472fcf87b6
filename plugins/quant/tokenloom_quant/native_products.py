"""The compiled products of `low_bit` for checkpoints: codes of 4 and 8 bits on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from tokenloom.ops.weight_memory import WeightMemory
from tokenloom_quant.affine_weight import ReadWeight
from tokenloom_quant.low_bit.affine_codes import AffineCodes, joined_codes
from tokenloom_quant.low_bit.kernels import load_kernels
from tokenloom_quant.low_bit.product import LowBitProduct
from tokenloom_quant.packed_products import PackedProducts

__all__ = ["NativeProducts"]

_GROUP_MULTIPLE = 8
_MAX_COLUMNS = 1 << 16


@final
class NativeProducts(PackedProducts):
    """Products in C++.

    Raises:
        NativeBuildError: they cannot be built on this machine, though a compiler is there.
    """

    def __init__(self) -> None:
        load_kernels()  # before any weight is read
        self._memory = WeightMemory()

    def why_not(self, weight: ReadWeight) -> str | None:
        values = weight.values
        if not isinstance(values, AffineCodes):
            return "no product takes this format packed"
        num_columns = values.codes.shape[1]
        if num_columns > _MAX_COLUMNS:
            return f"packed products have at most {_MAX_COLUMNS} input features, this layer has {num_columns}"
        if values.scale.shape[1] > 1 and values.group_size % _GROUP_MULTIPLE:
            return f"packed products need groups of a multiple of {_GROUP_MULTIPLE}, this layer has {values.group_size}"
        return None

    def build(self, weights: Sequence[ReadWeight], bias: torch.Tensor | None) -> LowBitProduct:
        rounding = weights[0].rounding
        codes = joined_codes([weight.values for weight in weights if isinstance(weight.values, AffineCodes)])
        # With one scale a row the product rounds rows by itself.
        rounds = rounding is not None and rounding.scale is None and codes.scale.shape[1] == 1
        return LowBitProduct(codes, bias, rounds_activations=rounds, memory=self._memory)
