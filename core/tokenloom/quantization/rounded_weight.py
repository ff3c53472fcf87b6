"""Weights on a grid of small whole numbers: how grids are laid, and what rounding to nearest makes of a weight.

W[n, k] is about scale[n, g] * (codes[n, k] - zero[n, g]), g being the group of input feature k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.nn import functional

__all__ = [
    "RoundedWeight",
    "RoundingScheme",
    "fit_grid",
    "group_ranges",
    "round_rows",
    "round_to_grid",
    "round_to_nearest",
]


@dataclass(frozen=True, slots=True)
class RoundingScheme:
    """What a weight is rounded to.

    Attributes:
        bits: of a code.
        group_size: input features that share a scale; -1 stands for all. The last group may have fewer.
        is_symmetric: whether the code 2^(bits - 1) always stands for zero.
        scale_dtype: in which scales are stored; codes are chosen for scales that are rounded to it already.
    """

    bits: int
    group_size: int
    is_symmetric: bool
    scale_dtype: torch.dtype

    @property
    def most(self) -> int:
        """The highest code."""
        return (1 << self.bits) - 1

    def width(self, num_columns: int) -> int:
        """Columns of a group in a weight of `num_columns`."""
        return num_columns if self.group_size == -1 else self.group_size


@dataclass(frozen=True, slots=True)
class RoundedWeight:
    """A weight on its grid.

    Attributes:
        codes: uint8 [N, K].
        scale: [N, G], in the scheme's dtype.
        zero: uint8 [N, G], the code that stands for zero.
        group_index: int64 [K], the group of each input feature.
        scheme: what it was rounded to.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor
    group_index: torch.Tensor
    scheme: RoundingScheme

    def dequantized(self) -> torch.Tensor:
        """fp32 [N, K]."""
        steps = self.codes.float() - self.zero[:, self.group_index].float()
        return steps * self.scale[:, self.group_index].float()

    def rows(self, start: int, stop: int) -> RoundedWeight:
        """Rows from `start` up to `stop`."""
        return replace(self, codes=self.codes[start:stop], scale=self.scale[start:stop], zero=self.zero[start:stop])

    def divisors(self, start: int, wanted: torch.Tensor) -> torch.Tensor:
        """Numbers next to fp32 `wanted` [rows] by which the rows from `start` on can be divided.

        Divided scales stay normal numbers of their dtype: float16 keeps few bits of what is below 6.1e-5, and none
        below 6e-8.
        """
        scale, limits = self.scale[start : start + wanted.numel()].float(), torch.finfo(self.scale.dtype)
        return wanted.clamp(min=scale.amax(dim=1) / limits.max, max=scale.amin(dim=1) / limits.smallest_normal)

    def with_rows_divided(self, start: int, divisors: torch.Tensor) -> RoundedWeight:
        """Divides the rows from `start` on by fp32 [rows], of `divisors`: codes stay, scales are rounded again."""
        scale = self.scale.clone()
        stop = start + divisors.numel()
        scale[start:stop] = (scale[start:stop].float() / divisors.unsqueeze(1)).to(scale.dtype)
        return replace(self, scale=scale)

    @property
    def is_in_order(self) -> bool:
        """Whether the columns of each group lie side by side, groups from first to last."""
        width = self.scheme.width(self.codes.shape[1])
        return torch.equal(self.group_index, torch.arange(self.codes.shape[1]) // width)


def fit_grid(low: torch.Tensor, high: torch.Tensor, scheme: RoundingScheme) -> tuple[torch.Tensor, torch.Tensor]:
    """The grid that reaches from `low` to `high` and holds zero.

    Symmetric: scale = max|w| / (2^bits - 1) * 2, so that the largest weight is half a step off at most.

    Args:
        low, high: fp32 of any one shape.
        scheme: the grid's form.

    Returns:
        (scale, zero), fp32 of that shape: scales as they are stored, never 0, and codes of zero.
    """
    least = torch.finfo(scheme.scale_dtype).smallest_normal
    most = scheme.most
    if scheme.is_symmetric:
        scale = torch.maximum(high, -low) * (2.0 / most)
        scale = scale.clamp(min=least).to(scheme.scale_dtype).float()
        return scale, torch.full_like(scale, float(1 << (scheme.bits - 1)))
    low, high = low.clamp(max=0.0), high.clamp(min=0.0)
    scale = ((high - low) / most).clamp(min=least).to(scheme.scale_dtype).float()
    return scale, (-low / scale).round_().clamp_(0, most)


def round_to_grid(weight: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, most: int) -> torch.Tensor:
    """Codes of the nearest numbers on a grid, fp32; all shapes broadcast."""
    return (weight / scale).round_().add_(zero).clamp_(0, most)


def round_to_nearest(weight: torch.Tensor, scheme: RoundingScheme, shrink: torch.Tensor | None = None) -> RoundedWeight:
    """Rounds a weight to nearest.

    Args:
        weight: fp32 [N, K].
        scheme: the grid's form.
        shrink: fp32 [N, G]: what the range of each group is multiplied by before its grid is laid; None leaves it.
    """
    num_columns = weight.shape[1]
    group_index = torch.arange(num_columns) // scheme.width(num_columns)
    low, high = group_ranges(weight, scheme)
    if shrink is not None:
        low, high = low * shrink, high * shrink
    scale, zero = fit_grid(low, high, scheme)
    codes = round_to_grid(weight, scale[:, group_index], zero[:, group_index], scheme.most)
    return RoundedWeight(codes.to(torch.uint8), scale.to(scheme.scale_dtype), zero.to(torch.uint8), group_index, scheme)


def group_ranges(weight: torch.Tensor, scheme: RoundingScheme) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the largest weight of each group of columns: fp32 [N, K] -> two of [N, G]."""
    width = scheme.width(weight.shape[1])
    padded = functional.pad(weight, (0, -weight.shape[1] % width), mode="replicate")  # in the range of the last group
    low, high = padded.view(weight.shape[0], -1, width).aminmax(dim=2)
    return low, high


def round_rows(x: torch.Tensor) -> torch.Tensor:
    """Rounds each row to int8, max|x| / 127 apart: [M, K] -> the same shape and dtype."""
    wide = x.float()
    step = wide.abs().amax(dim=1, keepdim=True).clamp(min=1e-30) / 127.0  # [M, 1]
    return ((wide / step).round_() * step).to(x.dtype)
