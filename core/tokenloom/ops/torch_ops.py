"""Plain torch versions of the fused operations: the reference for every other one, and fit for any device.

Shapes are those of `OpTable`. Norms compute in fp32 and round once; rotary and SiLU work in the dtype they are given.
"""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["add_rms_norm", "linear", "rms_norm", "rotary", "row_invariant_linear", "silu_and_mul"]

_TILE_ROWS = 16


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x @ weight.T + bias.

    Args:
        x: [M, K].
        weight: [N, K], same dtype.
        bias: [N] or None.

    Returns:
        [M, N], dtype of x.
    """
    return functional.linear(x, weight, bias)


def row_invariant_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`linear`, with each row's result independent of the other rows and of their number, bit for bit.

    Matrix products pick their order of summation by shape, so every product here has the same one: 16 rows, the last of
    them padding if need be.
    """
    num_rows = x.shape[0]
    if num_rows == 0:
        return linear(x, weight, bias)
    padded = functional.pad(x, (0, 0, 0, -num_rows % _TILE_ROWS))
    return torch.cat([linear(tile, weight, bias) for tile in torch.split(padded, _TILE_ROWS)])[:num_rows]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    Args:
        x: [T, H].
        weight: [H], same dtype.
        eps: added to the mean square.

    Returns:
        [T, H], dtype of x.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019), equation 4.
    """
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds x to the residual stream in place, and norms the sum.

    Args:
        x: [T, H].
        residual: [T, H]; mutated.
        weight: [H].
        eps: as in `rms_norm`.

    Returns:
        (normed [T, H], `residual` itself).
    """
    residual.add_(x)
    return rms_norm(residual, weight, eps), residual


def rotary(heads: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """Rotates pairs (i, i + R/2) of each head by the position's angles.

    Args:
        heads: [T, any number of heads, D].
        cos, signed_sin: [T, 1, R], R even and <= D; see `OpTable.rotary`.

    Returns:
        [T, heads, D], a new tensor; elements from R on are copied.

    Source: Su et al., RoFormer (2021), section 3.2.2, with halves instead of neighbours paired.
    """
    rotary_dim = cos.shape[-1]
    if rotary_dim == heads.shape[-1]:
        return torch.addcmul(heads * cos, heads.roll(rotary_dim // 2, -1), signed_sin)
    turned = heads[..., :rotary_dim]
    turned = torch.addcmul(turned * cos, turned.roll(rotary_dim // 2, -1), signed_sin)
    return torch.cat((turned, heads[..., rotary_dim:]), dim=-1)


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up.

    Args:
        gate_up: [T, 2 * I], the gate's I columns first.

    Returns:
        [T, I].

    Source: Shazeer, GLU Variants Improve Transformer (2020), SwiGLU.
    """
    gate, up = gate_up.chunk(2, dim=-1)  # each [T, I]
    return functional.silu(gate).mul_(up)
