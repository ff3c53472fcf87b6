"""The one form in which weights of quantized checkpoints are read: codes with scales and zero points, or numbers.

Every format with groups is W[n, k] = scale[n, g] * (code[n, k] - zero[n, g]), and so one product serves them all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from tokenloom.models.rank_part import RankPart
from tokenloom_quant.fp8_blocks import ScaledFloats
from tokenloom_quant.low_bit.affine_codes import AffineCodes

__all__ = ["ActivationRounding", "ReadWeight", "affine_codes", "column_order"]

_FILLED_MULTIPLE = 16  # every product takes groups of these


@dataclass(frozen=True, slots=True)
class ActivationRounding:
    """How a checkpoint wants activations rounded to int8.

    Attributes:
        scale: the same for all rows, found by calibration; None takes max|x| / 127 of each row.
        zero_point: the code of zero, with a `scale`.
        in_units: with a `scale`, whether rounded rows come in units of it, as whole numbers from -255 to 255, which
            every dtype holds exactly.
    """

    scale: float | None = None
    zero_point: int = 0
    in_units: bool = True

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Rounded rows [M, K], dtype of x."""
        if self.scale is not None:
            codes = (x.float() / self.scale).round_().add_(self.zero_point).clamp_(-128, 127)
            steps = codes.sub_(self.zero_point)
            return (steps if self.in_units else steps * self.scale).to(x.dtype)
        wide = x.float()
        largest = wide.abs().amax(dim=1, keepdim=True)  # [M, 1]
        codes = (wide * torch.where(largest < 1e-30, 0.0, 127.0 / largest)).round_()
        return (codes * (largest / 127.0)).to(x.dtype)


@dataclass(frozen=True, slots=True)
class ReadWeight:
    """One shard's weight, as a checkpoint has it.

    Attributes:
        values: codes, 8-bit floats with scales, or floating numbers [N, K].
        order: int64 [columns of `values`]: column i belongs to input feature order[i], or to none where that is -1;
            None stands for 0, 1, 2, ...
        rounding: of activations; None takes them as they are.
        remark: what users should know of the way it is run where activations are not rounded.
    """

    values: AffineCodes | ScaledFloats | torch.Tensor
    order: torch.Tensor | None = None
    rounding: ActivationRounding | None = None
    remark: str | None = None

    def dense(self) -> ReadWeight:
        """The same weight as numbers, columns in the order of input features."""
        if isinstance(self.values, torch.Tensor):
            return self
        numbers = self.values.dequantized()  # fp32 [N, K]
        if self.order is not None:
            numbers = numbers[:, self.order.argsort()[int((self.order < 0).sum()) :]]
        return replace(self, values=numbers, order=None)

    def of_rank(self, part: RankPart) -> ReadWeight:
        """The same numbers for the rows and columns of a rank, packed if this is."""
        if part.is_whole:
            return self
        if isinstance(self.values, torch.Tensor):
            return replace(self, values=part.of_weight(self.values))
        if self.order is None or part.has_all_columns:
            return replace(self, values=self.values.of_rank(part))
        assert isinstance(self.values, AffineCodes), "8-bit floats have no order"
        codes, order = _ordered_part(self.values, self.order, part)
        return replace(self, values=codes, order=order)

    def in_units_of_activations(self) -> ReadWeight:
        """The weight times the scale of activations: what multiplies the whole numbers that `rounding` gives."""
        if self.rounding is None or self.rounding.scale is None or not self.rounding.in_units:
            return self
        assert not isinstance(self.values, ScaledFloats), "8-bit floats have no ActivationRounding"
        factor = self.rounding.scale
        if isinstance(self.values, torch.Tensor):
            return replace(self, values=self.values.float() * factor)
        minimum = None if self.values.minimum is None else self.values.minimum.float() * factor
        return replace(self, values=replace(self.values, scale=self.values.scale.float() * factor, minimum=minimum))


def _ordered_part(codes: AffineCodes, order: torch.Tensor, part: RankPart) -> tuple[AffineCodes, torch.Tensor]:
    """Those columns that belong to a rank's input features, with their order.

    A rank has another number of columns of each group, or none. Groups are filled up to the length of the longest with
    columns of no feature:   | 5 2 7 4 -1 | 1 6 -1 -1 -1 | 0 3 8 9 -1 |   in groups of 5.
    """
    columns = order - part.columns.start
    places = ((columns >= 0) & (columns < len(part.columns))).nonzero().flatten()  # [K of the rank]
    lengths = (places // codes.group_size).bincount()  # [up to G of the whole]
    groups = lengths.nonzero().flatten()  # [G of the rank]
    lengths = lengths[groups]
    size = -(-int(lengths.max()) // _FILLED_MULTIPLE) * _FILLED_MULTIPLE
    starts = torch.arange(groups.numel()) * size - (lengths.cumsum(0) - lengths)
    slots = torch.arange(places.numel()) + starts.repeat_interleave(lengths)
    filled_order = torch.full((groups.numel() * size,), -1, dtype=torch.int64)
    filled_order[slots] = columns[places]
    own = part.of_rows(codes.codes)
    filled = own.new_zeros(own.shape[0], filled_order.numel())
    filled[:, slots] = own[:, places]
    scale = part.of_rows(codes.scale)[:, groups]
    minimum = None if codes.minimum is None else part.of_rows(codes.minimum)[:, groups]
    return AffineCodes(filled, scale, minimum, codes.bits, size), filled_order


def affine_codes(
    codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None, bits: int, group_size: int
) -> AffineCodes:
    """Puts codes, scales and zero points together.

    Args:
        codes: uint8 [N, K], below 2^bits.
        scale: [N, G], floating.
        zero: whole numbers from 0 to 2^bits - 1, [N, G]; None stands for 2^(bits - 1).
        bits: 2, 3, 4 or 8; up to 4 are stored in 4.
        group_size: columns that share a scale, at most K.

    Returns:
        The same weights: to the last bit, but for scales of float32 with zero points, which are multiplied in float32.
        Scales are float16 if they came so and need no minimum beside them.
    """
    middle = 1 << (bits - 1)
    stored_bits: Literal[4, 8] = 8 if bits == 8 else 4
    if zero is None or bool((zero == middle).all()):
        stored_scale = scale if scale.dtype == torch.float16 else scale.float()
        shift = (1 << (stored_bits - 1)) - middle  # the middle of the codes stands for zero
        return AffineCodes(codes + shift if shift else codes, stored_scale, None, stored_bits, group_size)
    # A scale of float16 or bfloat16 times a zero point has at most 19 digits, of which float32 has 24.
    wide = scale.float()
    return AffineCodes(codes, wide, -wide * zero.float(), stored_bits, group_size)


def column_order(group_index: torch.Tensor, group_size: int) -> torch.Tensor | None:
    """The order in which the columns of each group lie side by side, from the group of each column.

    Args:
        group_index: [K], group of each input feature.
        group_size: columns of a group; the last group may have fewer.

    Returns:
        int64 [K], or None if columns are in that order already.

    Raises:
        ValueError: some group has another number of columns.
    """
    groups = group_index.long()
    regular = torch.arange(groups.numel()) // group_size
    if torch.equal(groups, regular):
        return None
    order = groups.argsort(stable=True)
    if not torch.equal(groups[order], regular):
        raise ValueError(f"its groups have other sizes than {group_size}")
    return order
