"""Groups of input features that share a scale, where a rank holds a part of the features."""

from __future__ import annotations

import math

import torch

from tokenloom.models.rank_part import RankPart

__all__ = ["groups_of_part"]


def groups_of_part(part: RankPart, group_size: int) -> tuple[int, torch.Tensor]:
    """How the columns of a rank are grouped, so that each keeps its scale.

    A rank's part may begin or end within a group: the largest size that divides both what it holds and a group then
    makes groups that lie in one of the whole weight's each.

    Args:
        part: what the rank holds of the weight.
        group_size: columns of the whole weight that share a scale; the last group may have fewer.

    Returns:
        The group size of the part, and int64 [G of the part]: the whole weight's group that each group lies in.
    """
    start, num_columns = part.columns.start, len(part.columns)
    if part.has_all_columns:
        return group_size, torch.arange(-(-num_columns // group_size))
    if group_size >= part.shape[1]:
        return num_columns, torch.zeros(1, dtype=torch.int64)
    size = math.gcd(num_columns, group_size)  # the start is a multiple of num_columns
    return size, torch.arange(start, start + num_columns, size) // group_size
