"""x @ W.T by the compiled products: packs codes, scales and bias once, and unpacks single rows for embeddings."""

from __future__ import annotations

from typing import Any, final

import torch
from torch.nn import functional

from tokenloom.errors import ModelError
from tokenloom.ops.weight_memory import WeightMemory
from tokenloom_quant.low_bit.affine_codes import AffineCodes
from tokenloom_quant.low_bit.kernels import load_kernels
from tokenloom_quant.low_bit.packed_product import PackedProduct

__all__ = ["LowBitProduct"]

_PANEL = 32  # kPanel of low_bit.h: output features side by side
_SINGLE_GROUP_MULTIPLE = 64  # one group is filled up to it
_MAX_GROUP = 1 << 16  # sums of 32 bits hold so many products of two codes of 8
# The four bytes that hold eight codes of 4 bits: these in their lower halves, and these in their upper ones.
_LOWER, _UPPER = [0, 4, 1, 5], [2, 6, 3, 7]


@final
class LowBitProduct(PackedProduct):
    """A weight as codes, packed for the product; the only copy.

    Args:
        affine: the weight.
        bias: [N] or None.
        rounds_activations: each group of each row of x is rounded to int8, scale max|x| / 127; else x is not rounded.
        memory: where the packed weights go.
        activation_group: input features that share a scale in that rounding, a multiple of 8; None stands for the
            weight's own groups. Anything else needs a weight of one group.

    Raises:
        NativeBuildError: the extension cannot be built on this machine.
        ModelError: a group is so large that sums could overflow.
    """

    def __init__(
        self,
        affine: AffineCodes,
        bias: torch.Tensor | None,
        *,
        rounds_activations: bool,
        memory: WeightMemory,
        activation_group: int | None = None,
    ) -> None:
        num_rows, self._num_columns = affine.codes.shape
        summed = activation_group or affine.group_size  # products in one sum of whole numbers
        if summed > _MAX_GROUP:
            raise ModelError(
                f"in products of codes at most {_MAX_GROUP} input features share a scale, got {summed}; "
                "leave this layer as it is (quant.skip)"
            )
        num_groups = affine.scale.shape[1]
        multiple = (activation_group or _SINGLE_GROUP_MULTIPLE) if num_groups == 1 else affine.group_size
        padded = -(-self._num_columns // multiple) * multiple
        row_group = 0 if not rounds_activations else activation_group or padded // num_groups
        self._bits = affine.bits
        self._rounds_activations = rounds_activations
        self._codes = _kept(_pack_codes(affine, multiple), memory)  # [panels, planes, 32, 4]
        self._scales = _kept(_pack_rows(affine.scale), memory)  # [panels, groups, 32]
        self._minima = None if affine.minimum is None else _kept(_pack_rows(affine.minimum), memory)
        self._bias = None if bias is None else _kept(functional.pad(bias.float(), (0, -num_rows % _PANEL)), memory)
        self._product: Any = load_kernels().LowBitLinear(
            self._codes,
            self._scales,
            self._minima,
            self._bias,
            affine.bits,
            self._num_columns,
            num_rows,
            row_group,
        )

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """[M, K] in bfloat16 or float32 -> [M, N], dtype of x: x @ W.T + bias. M may be 0; rows may be strided."""
        product: torch.Tensor = self._product.apply(x)
        return product

    def apply_float32(self, x: torch.Tensor) -> torch.Tensor:
        """The same, not rounded to the dtype of x."""
        product: torch.Tensor = self._product.apply_float32(x)
        return product

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Rows of W: int64 [M] -> fp32 [M, K]."""
        rows: torch.Tensor = self._product.rows(indices.contiguous())
        return rows

    @property
    def rounds_activations(self) -> bool:
        return self._rounds_activations

    @property
    def num_bytes(self) -> int:
        parts = (self._codes, self._scales, self._minima, self._bias)
        return sum(part.nbytes for part in parts if part is not None)


def _pack_codes(affine: AffineCodes, multiple: int) -> torch.Tensor:
    """uint8 [N, K] -> [panels, planes, 32, 4]; see low_bit.h. Zeros where there is no weight."""
    num_rows, num_columns = affine.codes.shape
    filled = functional.pad(affine.codes, (0, -num_columns % multiple, 0, -num_rows % _PANEL))
    per_plane = 8 if affine.bits == 4 else 4
    planes = filled.view(-1, _PANEL, filled.shape[1] // per_plane, per_plane).transpose(1, 2)
    return planes if affine.bits == 8 else planes[..., _LOWER] | planes[..., _UPPER] << 4


def _pack_rows(values: torch.Tensor) -> torch.Tensor:
    """[N, G] -> [panels, G, 32]."""
    filled = functional.pad(values, (0, 0, 0, -values.shape[0] % _PANEL))
    return filled.view(-1, _PANEL, values.shape[1]).transpose(1, 2)


def _kept(values: torch.Tensor, memory: WeightMemory) -> torch.Tensor:
    return memory.empty(tuple(values.shape), values.dtype).copy_(values)
