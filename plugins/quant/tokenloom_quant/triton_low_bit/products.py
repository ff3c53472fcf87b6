"""Weights of checkpoints on a GPU: packed once, and multiplied by the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from tokenloom.ops.triton_card import card_of
from tokenloom_quant.affine_weight import ReadWeight
from tokenloom_quant.fp8_blocks import ScaledFloats, joined_floats
from tokenloom_quant.low_bit.affine_codes import AffineCodes, joined_codes
from tokenloom_quant.low_bit.packed_product import PackedProduct
from tokenloom_quant.packed_products import PackedProducts
from tokenloom_quant.triton_low_bit.launches import grouped_product, round_rows, scaled_product
from tokenloom_quant.triton_low_bit.packing import GROUP_MULTIPLE, PackedEightBits, pack_codes, pack_eight_bits
from tokenloom_quant.triton_low_bit.tiles import why_not_e4m3

__all__ = ["CodesProduct", "EightBitProduct", "TritonProducts"]

_FLOAT_GROUP_MULTIPLE = 32  # input features that the matrix units take at once
_MAX_INT8_COLUMNS = 1 << 16  # sums of 32 bits hold so many products of two codes of 8


@final
class TritonProducts(PackedProducts):
    """Codes of 4 and 8 bits, int8 times int8, and e4m3 times e4m3 where the card has it.

    Args:
        device: where weights live: a GPU, or a CPU for Triton's interpreter.
        deterministic: a row's result does not depend on the other rows, bit for bit.
    """

    def __init__(self, device: torch.device, *, deterministic: bool) -> None:
        self._device = device
        self._deterministic = deterministic

    def why_not(self, weight: ReadWeight) -> str | None:
        values = weight.values
        if isinstance(values, torch.Tensor):
            return "no product takes this format packed"
        is_single = values.scale.shape[1] == 1
        if isinstance(values, AffineCodes):
            multiple, size = GROUP_MULTIPLE, values.group_size
        else:
            if not values.rounds_activations:
                return "products of 8-bit floats round activations, which this checkpoint leaves as they are"
            if obstacle := why_not_e4m3(card_of(self._device).name):
                return obstacle
            multiple, size = _FLOAT_GROUP_MULTIPLE, values.group_size
        if not is_single and size % multiple:
            return f"packed products need groups of a multiple of {multiple}, this layer has {size}"
        return None

    def build(self, weights: Sequence[ReadWeight], bias: torch.Tensor | None) -> PackedProduct:
        floats = [weight.values for weight in weights if isinstance(weight.values, ScaledFloats)]
        if floats:
            values = joined_floats(floats)
            packed = pack_eight_bits(values.weight, values.scale, values.group_size, self._device)
            return EightBitProduct(packed, bias, deterministic=self._deterministic)
        codes = joined_codes([weight.values for weight in weights if isinstance(weight.values, AffineCodes)])
        rounding = weights[0].rounding
        if rounding is not None and rounding.scale is None and _is_int8(codes):
            whole = (codes.codes ^ 128).view(torch.int8)  # 128 is zero
            packed = pack_eight_bits(whole, codes.scale, codes.group_size, self._device)
            return EightBitProduct(packed, bias, deterministic=self._deterministic)
        return CodesProduct(codes, bias, self._device, deterministic=self._deterministic)


def _is_int8(codes: AffineCodes) -> bool:
    is_plain = codes.bits == 8 and codes.minimum is None and codes.scale.shape[1] == 1
    return is_plain and codes.codes.shape[1] <= _MAX_INT8_COLUMNS


@final
class CodesProduct(PackedProduct):
    """Floating rows times codes of 4 or 8 bits."""

    def __init__(
        self, codes: AffineCodes, bias: torch.Tensor | None, device: torch.device, *, deterministic: bool
    ) -> None:
        self._weight = pack_codes(codes, device)
        self._bias = bias
        self._deterministic = deterministic

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return grouped_product(x, self._weight, self._bias, x.dtype, deterministic=self._deterministic)

    def apply_float32(self, x: torch.Tensor) -> torch.Tensor:
        return grouped_product(x, self._weight, self._bias, torch.float32, deterministic=self._deterministic)

    @property
    def rounds_activations(self) -> bool:
        return False

    @property
    def num_bytes(self) -> int:
        return self._weight.num_bytes + (0 if self._bias is None else self._bias.nbytes)


@final
class EightBitProduct(PackedProduct):
    """Rows that are rounded to 8 bits, times weights of 8 bits, both int8 or both e4m3."""

    def __init__(self, weight: PackedEightBits, bias: torch.Tensor | None, *, deterministic: bool) -> None:
        self._weight = weight
        self._bias = bias
        self._deterministic = deterministic

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x, x.dtype)

    def apply_float32(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x, torch.float32)

    @property
    def rounds_activations(self) -> bool:
        return True

    @property
    def num_bytes(self) -> int:
        return self._weight.num_bytes + (0 if self._bias is None else self._bias.nbytes)

    def _product(self, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        codes, scale = round_rows(x, self._weight.weight.dtype, self._weight)
        return scaled_product(codes, scale, self._weight, self._bias, dtype, deterministic=self._deterministic)
