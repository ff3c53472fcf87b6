"""Plain torch versions of the fused operations: the reference for every other one, and fit for any device.

Shapes are those of `OpTable`. Norms compute in fp32 and round once; rotary and SiLU work in the dtype they are given.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

__all__ = [
    "add_rms_norm",
    "gelu_tanh_and_mul",
    "head_rms_norm",
    "linear",
    "rms_norm",
    "rotary",
    "row_invariant_gelu_tanh_and_mul",
    "row_invariant_linear",
    "row_invariant_silu_and_mul",
    "silu_and_mul",
    "split_rotary",
]

_TILE_ROWS = 16
_MAX_UNSPLIT = 16384  # elements up to which torch keeps an activation on one thread


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
        weight: [H], same dtype; or fp32, which makes the product fp32 as well.
        eps: added to the mean square.

    Returns:
        [T, H], dtype of x.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019), equation 4.
    """
    if weight.dtype == x.dtype:
        return functional.rms_norm(x, (x.shape[-1],), weight, eps)
    return functional.rms_norm(x.float(), (x.shape[-1],), weight, eps).to(x.dtype)


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


def head_rms_norm(heads: torch.Tensor, weights: torch.Tensor, num_queries: int, eps: float) -> torch.Tensor:
    """RMS norm of each query and key head by itself.

    Args:
        heads: [T, Hq + Hkv, D], queries first.
        weights: [2, D]: for queries, for keys; dtypes as in `rms_norm`.
        num_queries: Hq.
        eps: as in `rms_norm`.

    Returns:
        [T, Hq + Hkv, D], a new tensor of the dtype of `heads`.

    Source: Henry et al., Query-Key Normalization for Transformers (2020), with RMS norms.
    """
    normed = functional.rms_norm(heads.float(), (heads.shape[-1],), None, eps)  # fp32
    normed[:, :num_queries] *= weights[0]
    normed[:, num_queries:] *= weights[1]
    return normed.to(heads.dtype)


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


def split_rotary(
    projected: torch.Tensor,
    num_heads: int,
    num_kv_heads: int,
    cos: torch.Tensor,
    signed_sin: torch.Tensor,
    rotary: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor] = rotary,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Cuts what the fused projection gives into heads, and rotates those of queries and keys with `rotary`.

    Args:
        projected: [T, (Hq + 2 * Hkv) * D]: queries, keys, values.
        num_heads: Hq; 0 where there are no queries.
        num_kv_heads: Hkv.
        cos, signed_sin: as for `rotary`.

    Returns:
        Queries [T, Hq, D], keys [T, Hkv, D], values [T, Hkv, D].
    """
    num_rotated = num_heads + num_kv_heads
    num_all = num_rotated + num_kv_heads
    heads = projected.view(projected.shape[0], num_all, projected.shape[1] // num_all)  # [T, Hq + 2 * Hkv, D]
    turned = rotary(heads[:, :num_rotated], cos, signed_sin)
    return turned[:, :num_heads], turned[:, num_heads:], heads[:, num_rotated:]


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


def gelu_tanh_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up, GELU in its tanh form.

    Args:
        gate_up: [T, 2 * I], the gate's I columns first.

    Returns:
        [T, I].

    Source: Shazeer, GLU Variants Improve Transformer (2020), GEGLU; Hendrycks and Gimpel, GELUs (2016), section 2.
    """
    gate, up = gate_up.chunk(2, dim=-1)  # each [T, I]
    return functional.gelu(gate, approximate="tanh").mul_(up)


def row_invariant_silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu_and_mul`, with each row's result independent of the other rows and of their number, bit for bit."""
    return _by_small_tiles(silu_and_mul, gate_up)


def row_invariant_gelu_tanh_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`gelu_tanh_and_mul`, with each row's result independent of the other rows and of their number, bit for bit."""
    return _by_small_tiles(gelu_tanh_and_mul, gate_up)


def _by_small_tiles(activate: Callable[[torch.Tensor], torch.Tensor], gate_up: torch.Tensor) -> torch.Tensor:
    """Runs an activation on few rows at a time.

    On a CPU, torch gives each thread an equal part of a large tensor. Where the part ends, often within a row, the last
    elements are computed one by one, by another exponential function than the vectors before them.
    """
    num_rows = max(1, _MAX_UNSPLIT // max(1, gate_up.shape[1] // 2))
    if gate_up.shape[0] <= num_rows:
        return activate(gate_up)
    return torch.cat([activate(tile) for tile in torch.split(gate_up, num_rows)])
