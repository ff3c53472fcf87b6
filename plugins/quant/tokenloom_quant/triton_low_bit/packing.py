"""Weights in the layout of the kernels; README.md draws it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch.nn import functional

from tokenloom_quant.low_bit.affine_codes import AffineCodes
from tokenloom_quant.triton_low_bit.tiles import MAX_FEATURES

__all__ = ["GROUP_MULTIPLE", "CodesForm", "PackedCodes", "PackedEightBits", "pack_codes", "pack_eight_bits"]

GROUP_MULTIPLE = 16
"""Groups are of a multiple of it: the matrix units take no fewer input features at once."""
_MOST_COLUMNS = 64  # of a step's half
_ROW_MULTIPLE = 16  # columns of 8-bit operands, so that loads are of 16 bytes


@final
@dataclass(frozen=True, slots=True)
class CodesForm:
    """The sizes of `PackedCodes`, attributes as there; `stride` is from one row of codes to the next."""

    bits: Literal[4, 8]
    half: int
    steps_per_group: int
    num_features: int
    num_columns: int
    num_steps: int
    stride: int


@final
@dataclass(frozen=True, slots=True)
class PackedCodes:
    """A weight [N, K] of codes, for `grouped_product`.

    Attributes:
        codes: uint8 [steps * half, padded N].
        scale, offset: [groups, padded N]; w = scale * (code - 2^(bits - 1)) + offset, offset fp32 or None for zero.
        bits: of a code.
        half: input features of a step with 8 bits, half of them with 4.
        steps_per_group: steps that have one scale; 0 if each half of a step has its own.
        num_features, num_columns: N and K.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    offset: torch.Tensor | None
    bits: Literal[4, 8]
    half: int
    steps_per_group: int
    num_features: int
    num_columns: int

    @property
    def num_steps(self) -> int:
        """Steps of the kernel's loop."""
        return self.codes.shape[0] // self.half

    @property
    def form(self) -> CodesForm:
        """What is alike in layers of the same sizes."""
        return CodesForm(
            self.bits,
            self.half,
            self.steps_per_group,
            self.num_features,
            self.num_columns,
            self.num_steps,
            self.codes.shape[1],
        )

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return self.codes.nbytes + self.scale.nbytes + (0 if self.offset is None else self.offset.nbytes)


@final
@dataclass(frozen=True, slots=True)
class PackedEightBits:
    """A weight [N, K] of 8 bits, int8 or e4m3, for `scaled_product`.

    Attributes:
        weight: [N, padded K].
        scale: fp32 [N, groups].
        group_size: columns that share a scale: a multiple of 32; all of the padded ones if there is one group.
        num_columns: K.
    """

    weight: torch.Tensor
    scale: torch.Tensor
    group_size: int
    num_columns: int

    @property
    def num_bytes(self) -> int:
        """Of both tensors."""
        return self.weight.nbytes + self.scale.nbytes


def pack_codes(affine: AffineCodes, device: torch.device) -> PackedCodes:
    """Packs a weight whose groups are of a multiple of `GROUP_MULTIPLE`, or one for all columns."""
    num_features, num_columns = affine.codes.shape
    is_single = affine.scale.shape[1] == 1
    size = affine.group_size
    assert is_single or size % GROUP_MULTIPLE == 0, f"groups of {size}"
    half = _MOST_COLUMNS if is_single else math.gcd(size, _MOST_COLUMNS)
    step = half if affine.bits == 8 else 2 * half
    has_own_halves = affine.bits == 4 and not is_single and size % step != 0
    filled = functional.pad(affine.codes, (0, -num_columns % step, 0, -num_features % MAX_FEATURES))
    num_steps = filled.shape[1] // step
    codes = filled.T.contiguous()  # [padded K, padded N]
    if affine.bits == 4:
        halves = codes.view(num_steps, 2, half, -1)
        codes = (halves[:, 0] | halves[:, 1] << 4).flatten(0, 1)
    unit = half if has_own_halves else step  # columns that a scale is looked up for
    num_groups = 1 if is_single else -(-num_steps * step // (unit if has_own_halves else size))
    zero = 1 << (affine.bits - 1)
    # With the middle of the codes as zero, sums of codes and of minima do not cancel each other.
    offset = None if affine.minimum is None else affine.minimum.float() + zero * affine.scale.float()
    repeats = size // half if has_own_halves else 1
    return PackedCodes(
        codes.to(device),
        _spread(affine.scale, repeats, num_groups).to(device),
        None if offset is None else _spread(offset, repeats, num_groups).to(device),
        affine.bits,
        half,
        0 if has_own_halves else num_steps if is_single else size // step,
        num_features,
        num_columns,
    )


def pack_eight_bits(
    weight: torch.Tensor, scale: torch.Tensor, group_size: int, device: torch.device
) -> PackedEightBits:
    """Packs weight [N, K], int8 or e4m3, with scale [N, groups]."""
    num_columns = weight.shape[1]
    padding = -num_columns % _ROW_MULTIPLE
    bits = functional.pad(weight.view(torch.uint8), (0, padding)).contiguous().view(weight.dtype)
    size = bits.shape[1] if scale.shape[1] == 1 else group_size
    return PackedEightBits(bits.to(device), scale.float().contiguous().to(device), size, num_columns)


def _spread(values: torch.Tensor, repeats: int, num_groups: int) -> torch.Tensor:
    """[N, G] -> [num_groups, padded N], zeros where there is no weight."""
    wide = values.repeat_interleave(repeats, dim=1)[:, :num_groups]
    filled = functional.pad(wide, (0, num_groups - wide.shape[1], 0, -values.shape[0] % MAX_FEATURES))
    return filled.T.contiguous()
