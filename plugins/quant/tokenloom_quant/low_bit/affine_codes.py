"""Weights as small whole numbers, with a scale and perhaps a minimum for each group of input features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional

from tokenloom.models.rank_part import RankPart
from tokenloom_quant.scale_groups import groups_of_part

__all__ = ["AffineCodes", "joined_codes", "round_to_codes"]


@dataclass(frozen=True, slots=True)
class AffineCodes:
    """W[n, k] = scale[n, k // group_size] * codes[n, k] + minimum[n, k // group_size].

    Attributes:
        codes: uint8 [N, K], below 2^bits.
        scale: [N, G] with G = ceil(K / group_size), float16 or float32.
        minimum: the same, or None: then it is -scale * 2^(bits - 1), the middle of the codes standing for zero.
        bits: 4 or 8.
        group_size: input features that share a scale: a multiple of 8, or K.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor | None
    bits: Literal[4, 8]
    group_size: int

    def dequantized(self) -> torch.Tensor:
        """fp32 [N, K]."""
        scale = self._of_codes(self.scale)
        if self.minimum is None:
            return (self.codes.float() - 2.0 ** (self.bits - 1)) * scale
        return self.codes.float() * scale + self._of_codes(self.minimum)

    @property
    def shared_columns(self) -> int:
        """Input features that must stay together for all to keep their groups; 1 where a row has one scale."""
        return self.group_size if self.scale.shape[1] > 1 else 1

    def of_rank(self, part: RankPart) -> AffineCodes:
        """The same weights for the rows and columns of a rank. Groups that are cut become smaller ones, which may then
        have another size than a multiple of 8."""
        if part.is_whole:
            return self
        size, groups = groups_of_part(part, self.group_size)
        scale, minimum = (
            None if values is None else part.of_rows(values).index_select(1, groups)
            for values in (self.scale, self.minimum)
        )
        assert scale is not None, "codes without scales"
        return AffineCodes(part.of_weight(self.codes), scale, minimum, self.bits, size)

    def _of_codes(self, values: torch.Tensor) -> torch.Tensor:
        return values.float().repeat_interleave(self.group_size, dim=1)[:, : self.codes.shape[1]]


def round_to_codes(
    weight: torch.Tensor, bits: Literal[4, 8], group_size: int | None, *, symmetric: bool
) -> AffineCodes:
    """Rounds a weight to nearest.

    Symmetric: scale = max|w| / (2^(bits - 1) - 1) of the group, and the lowest code is not used. Else the codes reach
    from the group's least weight to its largest. Scales are float16 where the normal numbers of that hold them all, and
    are rounded before codes are chosen.

    Args:
        weight: floating [N, K].
        bits: 4 or 8.
        group_size: input features that share a scale; None stands for all.
        symmetric: whether there is no minimum.

    Returns:
        Codes whose weights are within half a scale of the true ones, but for the rounding of scale and minimum. A scale
        that is not finite tells of weights that are not.
    """
    num_columns = weight.shape[1]
    size = num_columns if group_size is None else group_size
    wide = weight.float()
    padding = -num_columns % size
    groups = functional.pad(wide, (0, padding), mode="replicate") if padding else wide  # in the range of the last group
    groups = groups.view(weight.shape[0], -1, size)  # [N, G, size]
    middle, most = 2 ** (bits - 1), 2**bits - 1
    low, high = groups.aminmax(dim=2)  # [N, G]
    scale = torch.maximum(high, -low) / (middle - 1) if symmetric else (high - low) / most
    dtype = _dtype_for(scale, low)
    scale, minimum = scale.to(dtype), None if symmetric else low.to(dtype)
    shifted = groups if minimum is None else groups - minimum.float().unsqueeze(2)
    factor = torch.where(scale == 0, 0.0, 1.0 / scale.float())  # a group of one value has no scale
    codes = shifted.mul(factor.unsqueeze(2)).round_().add_(middle if symmetric else 0)
    codes = codes.clamp_(1 if symmetric else 0, most).to(torch.uint8).flatten(1)[:, :num_columns].contiguous()
    return AffineCodes(codes, scale, minimum, bits, size)


def joined_codes(parts: Sequence[AffineCodes]) -> AffineCodes:
    """The rows of all parts below each other, which agree in bits, groups and whether they have minima."""
    first = parts[0]
    if len(parts) == 1:
        return first
    dtype = first.scale.dtype if all(part.scale.dtype == first.scale.dtype for part in parts) else torch.float32
    minima = [part.minimum.to(dtype) for part in parts if part.minimum is not None]
    return AffineCodes(
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scale.to(dtype) for part in parts]),
        torch.cat(minima) if minima else None,
        first.bits,
        first.group_size,
    )


def _dtype_for(scale: torch.Tensor, low: torch.Tensor) -> torch.dtype:
    """float16, unless a scale or minimum is beyond it, or a scale so small that it would lose digits."""
    info = torch.finfo(torch.float16)
    is_small = bool(((scale > 0) & (scale < info.smallest_normal)).any())
    is_large = not bool((scale <= info.max).all() and (low.abs() <= info.max).all())  # or no number
    return torch.float32 if is_small or is_large else torch.float16
