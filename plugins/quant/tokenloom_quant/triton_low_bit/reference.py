"""The same operations in plain PyTorch, fp64 inside: what the kernels must compute, up to the order of summation."""

from __future__ import annotations

import torch
from torch.nn import functional

from tokenloom_quant.low_bit.affine_codes import AffineCodes

__all__ = ["grouped_product", "round_rows", "scaled_product"]


def grouped_product(x: torch.Tensor, affine: AffineCodes, bias: torch.Tensor | None) -> torch.Tensor:
    """x [M, K] @ W.T + bias -> fp64 [M, N], W being the dequantized codes."""
    product = x.double() @ affine.dequantized().double().T
    return product if bias is None else product + bias.double()


def round_rows(x: torch.Tensor, dtype: torch.dtype, group_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds each group of each row, its largest magnitude to 127 (int8) or 448 (e4m3).

    Args:
        x: [M, K].
        dtype: int8, to nearest with ties to even, or float8_e4m3fn.
        group_size: columns that share a scale; the last group may have fewer.

    Returns:
        (codes [M, K] of `dtype`, scale fp32 [M, ceil(K / group_size)]) with x about codes * scale.
    """
    limit = 127.0 if dtype == torch.int8 else 448.0
    padded = functional.pad(x.float(), (0, -x.shape[1] % group_size))
    groups = padded.view(x.shape[0], padded.shape[1] // group_size, group_size)  # [M, G, g]
    most = groups.abs().amax(dim=2, keepdim=True)
    full = torch.full_like(most, limit)  # torch divides a plain number by multiplying with the inverse
    codes = (groups * torch.where(most < 1e-30, 0.0, full / most)).clamp(-limit, limit)
    codes = (codes.round() if dtype == torch.int8 else codes).to(dtype)
    return codes.flatten(1)[:, : x.shape[1]].contiguous(), (most / full).squeeze(2)


def scaled_product(
    codes: torch.Tensor,
    row_scale: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    group_size: int,
) -> torch.Tensor:
    """(codes * row_scale) @ (weight * scale).T + bias, scales being those of groups of columns.

    Args:
        codes: [M, K], int8 or e4m3.
        row_scale: [M, G], G = ceil(K / group_size).
        weight: [N, K], dtype of codes.
        scale: [N, G].
        bias: [N] or None.
        group_size: columns that share scales.

    Returns:
        fp64 [M, N].
    """

    def wide(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        spread = scales.double().repeat_interleave(group_size, dim=1)[:, : values.shape[1]]
        return values.float().double() * spread

    product = wide(codes, row_scale) @ wide(weight, scale).T
    return product if bias is None else product + bias.double()
