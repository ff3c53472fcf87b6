"""The product in plain PyTorch: what the compiled one must compute, up to the order of summation."""

from __future__ import annotations

import torch
from torch.nn import functional

from tokenloom_quant.low_bit.affine_codes import AffineCodes

__all__ = ["low_bit_linear", "round_activations"]


def low_bit_linear(
    x: torch.Tensor, affine: AffineCodes, bias: torch.Tensor | None, *, rounds_activations: bool
) -> torch.Tensor:
    """x @ W.T + bias.

    Args:
        x: [M, K].
        affine: W [N, K].
        bias: [N] or None.
        rounds_activations: x is rounded to int8 first, a scale for each row and group of W.

    Returns:
        fp64 [M, N].
    """
    values = round_activations(x, affine.group_size) if rounds_activations else x
    product = values.double() @ affine.dequantized().double().T
    return product if bias is None else product + bias.double()


def round_activations(x: torch.Tensor, group_size: int) -> torch.Tensor:
    """Each group of each row to -127..127 times max|x| / 127, to the nearest, ties to even: [M, K] -> fp32 [M, K]."""
    padded = functional.pad(x.float(), (0, -x.shape[1] % group_size))
    groups = padded.view(x.shape[0], padded.shape[1] // group_size, group_size)
    largest = groups.abs().amax(dim=2, keepdim=True)
    most = torch.full_like(largest, 127.0)  # torch divides a plain number by multiplying with the inverse
    codes = (groups * torch.where(largest < 1e-30, 0.0, most / largest)).round()
    return (codes * (largest / most)).flatten(1)[:, : x.shape[1]]
