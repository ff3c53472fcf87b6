"""Weights of 8-bit floats with a scale for each rectangle of them: a tensor, an output feature or a block."""

from __future__ import annotations

import torch

__all__ = ["FP8", "FP8_REMARK", "scaled_blocks"]

FP8 = torch.float8_e4m3fn
FP8_REMARK = "takes activations as they are, where the checkpoint would round them to 8-bit floats"


def scaled_blocks(weight: torch.Tensor, scale: torch.Tensor, num_rows: int, num_columns: int) -> torch.Tensor:
    """weight[n, k] * scale[n // num_rows, k // num_columns].

    Args:
        weight: [N, K], of any floating dtype.
        scale: [ceil(N / num_rows), ceil(K / num_columns)], of any floating dtype.
        num_rows, num_columns: of a block; those at the edges may be smaller.

    Returns:
        fp32 [N, K].
    """
    rows = scale.float().repeat_interleave(num_rows, dim=0)[: weight.shape[0]]
    return weight.float() * rows.repeat_interleave(num_columns, dim=1)[:, : weight.shape[1]]
