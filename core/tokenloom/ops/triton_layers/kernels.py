"""Norms, rotary embedding and gated activations in Triton: each reads its operands once and writes its result once.

All arithmetic is fp32, rounded once to the dtype of the operands. A program's result depends on its own row alone, and
tiles depend on sizes of the model alone, so no row's bits depend on the others.

Maths, with x a row of H elements:
    rms_norm     x / sqrt(mean(x^2) + eps) * weight. Zhang and Sennrich (2019), equation 4.
    rotary       (a, b) -> (a cos - b sin, b cos + a sin), a = x[i] and b = x[i + R / 2]. Su et al., RoFormer (2021).
    gated        act(gate) * up. silu(g) = g s(g), and gelu_tanh(g) = g s(2 sqrt(2 / pi) (g + 0.044715 g^3)), as
                 (1 + tanh(y)) / 2 = s(2 y), with s the logistic function. Shazeer, GLU Variants (2020).

Layout: rows may be strided, elements of a row (of a head) are contiguous; results are contiguous.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["add_rms_norm_kernel", "gated_kernel", "head_rms_norm_kernel", "rms_norm_kernel", "rotary_kernel"]


@triton.jit
def rms_norm_kernel(
    out: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    stride_x: tl.tensor,
    size: tl.tensor,
    eps: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """One row a program: out [T, H] from x [T, H] and weight [H]."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_real = columns < size
    values = tl.load(x + row * stride_x + columns, mask=is_real, other=0.0).to(tl.float32)  # [BLOCK]
    normed = values * tl.rsqrt(tl.sum(values * values) / size + eps)
    scaled = normed * tl.load(weight + columns, mask=is_real, other=0.0).to(tl.float32)
    tl.store(out + row * size + columns, scaled.to(out.dtype.element_ty), mask=is_real)


@triton.jit
def add_rms_norm_kernel(
    out: tl.tensor,
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    stride_x: tl.tensor,
    stride_residual: tl.tensor,
    size: tl.tensor,
    eps: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """One row a program: adds x [T, H] to residual [T, H], rounds the sum, and norms what was stored: out [T, H]."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    is_real = columns < size
    added = tl.load(x + row * stride_x + columns, mask=is_real, other=0.0).to(tl.float32)  # [BLOCK]
    at = residual + row * stride_residual + columns
    stored = (tl.load(at, mask=is_real, other=0.0).to(tl.float32) + added).to(residual.dtype.element_ty)
    tl.store(at, stored, mask=is_real)
    values = stored.to(tl.float32)
    normed = values * tl.rsqrt(tl.sum(values * values) / size + eps)
    scaled = normed * tl.load(weight + columns, mask=is_real, other=0.0).to(tl.float32)
    tl.store(out + row * size + columns, scaled.to(out.dtype.element_ty), mask=is_real)


@triton.jit
def head_rms_norm_kernel(
    out: tl.tensor,
    heads: tl.tensor,
    weights: tl.tensor,
    stride_token: tl.tensor,
    stride_head: tl.tensor,
    num_heads: tl.tensor,
    num_queries: tl.tensor,
    eps: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_H: tl.constexpr,
) -> None:
    """BLOCK_H heads of one token a program: out [T, heads, D] from heads and weights [2, D] (of queries, of keys)."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    columns = tl.arange(0, BLOCK_D)
    is_real = (head < num_heads)[:, None] & (columns < HEAD_DIM)[None, :]
    at = heads + token * stride_token + head[:, None] * stride_head + columns[None, :]
    values = tl.load(at, mask=is_real, other=0.0).to(tl.float32)  # [BLOCK_H, BLOCK_D]
    inverse = tl.rsqrt(tl.sum(values * values, axis=1) / HEAD_DIM + eps)  # [BLOCK_H]
    which = tl.where(head < num_queries, 0, HEAD_DIM)
    weight = tl.load(weights + which[:, None] + columns[None, :], mask=is_real, other=0.0).to(tl.float32)
    to = out + (token * num_heads + head[:, None]) * HEAD_DIM + columns[None, :]
    tl.store(to, (values * inverse[:, None] * weight).to(out.dtype.element_ty), mask=is_real)


@triton.jit
def rotary_kernel(
    out: tl.tensor,
    heads: tl.tensor,
    cos: tl.tensor,
    signed_sin: tl.tensor,
    stride_token: tl.tensor,
    stride_head: tl.tensor,
    stride_cos: tl.tensor,
    stride_sin: tl.tensor,
    num_heads: tl.tensor,
    HEAD_DIM: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
    BLOCK_H: tl.constexpr,
) -> None:
    """BLOCK_H heads of one token a program; cos and signed_sin are [T, 2 HALF], the first half of signed_sin negated.

    A head: [0, HALF) turns with [HALF, 2 HALF), and [2 HALF, HEAD_DIM) is copied.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    column = tl.arange(0, BLOCK_HALF)
    is_angle = column < HALF
    is_real = (head < num_heads)[:, None] & is_angle[None, :]
    from_head = heads + token * stride_token + head[:, None] * stride_head
    to_head = out + (token * num_heads + head[:, None]) * HEAD_DIM
    low = tl.load(from_head + column[None, :], mask=is_real, other=0.0).to(tl.float32)  # [BLOCK_H, BLOCK_HALF]
    high = tl.load(from_head + HALF + column[None, :], mask=is_real, other=0.0).to(tl.float32)
    at_cos, at_sin = cos + token * stride_cos + column, signed_sin + token * stride_sin + column
    cos_low = tl.load(at_cos, mask=is_angle, other=0.0).to(tl.float32)[None, :]
    cos_high = tl.load(at_cos + HALF, mask=is_angle, other=0.0).to(tl.float32)[None, :]
    sin_low = tl.load(at_sin, mask=is_angle, other=0.0).to(tl.float32)[None, :]
    sin_high = tl.load(at_sin + HALF, mask=is_angle, other=0.0).to(tl.float32)[None, :]
    dtype = out.dtype.element_ty
    tl.store(to_head + column[None, :], (low * cos_low + high * sin_low).to(dtype), mask=is_real)
    tl.store(to_head + HALF + column[None, :], (high * cos_high + low * sin_high).to(dtype), mask=is_real)
    if HEAD_DIM > 2 * HALF:
        rest = 2 * HALF + tl.arange(0, BLOCK_REST)
        is_rest = (head < num_heads)[:, None] & (rest < HEAD_DIM)[None, :]
        tl.store(to_head + rest[None, :], tl.load(from_head + rest[None, :], mask=is_rest, other=0.0), mask=is_rest)


@triton.jit
def logistic(x: tl.tensor) -> tl.tensor:
    """1 / (1 + e^-x) without overflow."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def gated_kernel(
    out: tl.tensor,
    gate_up: tl.tensor,
    stride_row: tl.tensor,
    size: tl.tensor,
    IS_GELU: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """BLOCK columns of one row a program: out [T, I] from gate_up [T, 2 I], gates first."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_real = columns < size
    at = gate_up + row * stride_row + columns
    gate = tl.load(at, mask=is_real, other=0.0).to(tl.float32)  # [BLOCK]
    up = tl.load(at + size, mask=is_real, other=0.0).to(tl.float32)
    argument = gate
    if IS_GELU:
        argument = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)  # 2 sqrt(2 / pi)
    result = gate * logistic(argument) * up
    tl.store(out + row * size + columns, result.to(out.dtype.element_ty), mask=is_real)
