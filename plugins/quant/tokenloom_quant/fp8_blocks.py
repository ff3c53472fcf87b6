"""Weights of 8-bit floats with a scale for each rectangle of them: a tensor, an output feature or a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from tokenloom.models.rank_part import RankPart
from tokenloom_quant.scale_groups import groups_of_part

__all__ = ["FP8", "FP8_REMARK", "ScaledFloats", "joined_floats", "scaled_blocks"]

FP8 = torch.float8_e4m3fn
FP8_REMARK = "takes activations as they are, where the checkpoint would round them to 8-bit floats"


@final
@dataclass(frozen=True, slots=True)
class ScaledFloats:
    """W[n, k] = weight[n, k] * scale[n, k // group_size].

    Attributes:
        weight: [N, K], float8_e4m3fn.
        scale: fp32 [N, G] with G = ceil(K / group_size).
        group_size: input features that share a scale: K, or fewer.
        rounds_activations: whether the checkpoint is made for activations that are rounded to e4m3 as well.
    """

    weight: torch.Tensor
    scale: torch.Tensor
    group_size: int
    rounds_activations: bool

    def dequantized(self) -> torch.Tensor:
        """fp32 [N, K]."""
        return self.weight.float() * self.scale.repeat_interleave(self.group_size, dim=1)[:, : self.weight.shape[1]]

    def of_rank(self, part: RankPart) -> ScaledFloats:
        """The same weights for the rows and columns of a rank. Blocks that are cut become smaller ones."""
        if part.is_whole:
            return self
        size, groups = groups_of_part(part, self.group_size)
        scale = part.of_rows(self.scale).index_select(1, groups)
        return ScaledFloats(part.of_weight(self.weight), scale, size, self.rounds_activations)


def scaled_blocks(
    weight: torch.Tensor, scale: torch.Tensor, num_rows: int, num_columns: int, *, rounds_activations: bool
) -> ScaledFloats:
    """weight[n, k] * scale[n // num_rows, k // num_columns].

    Args:
        weight: [N, K], float8_e4m3fn.
        scale: [ceil(N / num_rows), ceil(K / num_columns)], of any floating dtype.
        num_rows, num_columns: of a block; those at the edges may be smaller.
        rounds_activations: as in `ScaledFloats`.
    """
    rows = scale.float().repeat_interleave(num_rows, dim=0)[: weight.shape[0]]
    return ScaledFloats(weight, rows.contiguous(), num_columns, rounds_activations)


def joined_floats(parts: Sequence[ScaledFloats]) -> ScaledFloats:
    """The rows of all parts below each other, which agree in groups."""
    first = parts[0]
    if len(parts) == 1:
        return first
    octets = torch.cat([part.weight.view(torch.uint8) for part in parts])  # cat has no e4m3 on every device
    scale = torch.cat([part.scale for part in parts])
    return ScaledFloats(octets.view(FP8), scale, first.group_size, first.rounds_activations)
