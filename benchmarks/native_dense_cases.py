"""Every operation of a decoder layer in bfloat16, the head, and the choice of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from native_op_case import Call, Case, Make, Shapes, random_bfloat16

from tokenloom.ops.native_sampling import native_draw, native_rank, native_row_max
from tokenloom.ops.packed_linear import GatedAct
from tokenloom.ops.table import OpTable
from tokenloom.sampling import SamplingBatch, SamplingRow
from tokenloom.sampling.filtering import rank_tokens
from tokenloom.sampling.sampler import draw_tokens
from tokenloom.sampling_params import SamplingParams

__all__ = ["dense_cases"]

_EPS = 1e-5
_RANKED = 50


def dense_cases(shapes: Shapes, rows: int) -> Iterator[Case]:
    """Products first, then what is between them."""
    hidden, size = shapes.hidden, shapes.intermediate
    q_size, qkv_heads = shapes.heads * shapes.head_dim, shapes.heads + 2 * shapes.kv_heads
    products = {"q, o": (hidden, q_size), "k, v": (hidden, shapes.kv_heads * shapes.head_dim)}
    products |= {"qkv": (hidden, qkv_heads * shapes.head_dim), "up": (hidden, size), "down": (size, hidden)}
    for name, (k, n) in products.items():
        yield Case(f"linear {name} {k}x{n}", 2 * k * n, _linear(rows, k, n))
    gates: tuple[GatedAct, ...] = ("silu", "gelu_tanh")
    for gate in gates:
        yield Case(f"linear x {gate} {hidden}x{2 * size}", 4 * hidden * size, _gated(rows, hidden, size, gate))
    yield Case(f"head in fp32 {hidden}x{shapes.vocab}", 2 * hidden * shapes.vocab, _head(rows, hidden, shapes.vocab))
    yield Case(f"rms_norm {hidden}", 4 * rows * hidden, _norm(rows, hidden))
    yield Case(f"add + rms_norm {hidden}", 8 * rows * hidden, _add_norm(rows, hidden))
    yield Case(
        f"head_rms_norm {qkv_heads}x{shapes.head_dim}", 4 * rows * qkv_heads * shapes.head_dim, _heads(rows, shapes)
    )
    yield Case(f"silu x mul {size}", 6 * rows * size, _activation(rows, size, "silu"))
    yield Case(f"gelu_tanh x mul {size}", 6 * rows * size, _activation(rows, size, "gelu_tanh"))
    num_rotated = shapes.heads + shapes.kv_heads
    yield Case(
        f"rotary {num_rotated}x{shapes.head_dim}", 4 * rows * num_rotated * shapes.head_dim, _rotary(rows, shapes)
    )
    yield Case(f"greedy choice {shapes.vocab}", 4 * rows * shapes.vocab, _greedy(rows, shapes.vocab))
    yield Case(f"first {_RANKED} of {shapes.vocab}", 4 * rows * shapes.vocab, _ranked(rows, shapes.vocab))
    yield Case(f"draw from {shapes.vocab}", 4 * rows * shapes.vocab, _drawn(rows, shapes.vocab))


def _linear(rows: int, k: int, n: int) -> Make:
    def make(_name: str, ops: OpTable) -> Call:
        packed, x = ops.pack_linear(random_bfloat16(n, k), None), random_bfloat16(rows, k)
        return lambda: packed.apply(x)

    return make


def _head(rows: int, k: int, n: int) -> Make:
    def make(_name: str, ops: OpTable) -> Call:
        packed, x = ops.pack_linear(random_bfloat16(n, k), None), random_bfloat16(rows, k)
        return lambda: packed.apply_float32(x)

    return make


def _gated(rows: int, k: int, size: int, gate: GatedAct) -> Make:
    def make(_name: str, ops: OpTable) -> Call:
        packed, x = ops.pack_linear(random_bfloat16(2 * size, k), None), random_bfloat16(rows, k)
        return lambda: packed.apply_gated(x, gate)

    return make


def _norm(rows: int, size: int) -> Make:
    def make(_name: str, ops: OpTable) -> Call:
        x, weight = random_bfloat16(rows, size), random_bfloat16(size)
        return lambda: ops.rms_norm(x, weight, _EPS)

    return make


def _add_norm(rows: int, size: int) -> Make:
    def make(_name: str, ops: OpTable) -> Call:
        x, residual = 1e-3 * random_bfloat16(rows, size), random_bfloat16(rows, size)
        weight = random_bfloat16(size)
        return lambda: ops.add_rms_norm(x, residual, weight, _EPS)

    return make


def _heads(rows: int, shapes: Shapes) -> Make:
    def make(_name: str, ops: OpTable) -> Call:
        heads = random_bfloat16(rows, shapes.heads + shapes.kv_heads, shapes.head_dim)
        weights = random_bfloat16(2, shapes.head_dim)
        return lambda: ops.head_rms_norm(heads, weights, shapes.heads, _EPS)

    return make


def _activation(rows: int, size: int, gate: Literal["silu", "gelu_tanh"]) -> Make:
    def make(_name: str, ops: OpTable) -> Call:
        gate_up = random_bfloat16(rows, 2 * size)
        activate = ops.silu_and_mul if gate == "silu" else ops.gelu_tanh_and_mul
        return lambda: activate(gate_up)

    return make


def _rotary(rows: int, shapes: Shapes) -> Make:
    def make(_name: str, ops: OpTable) -> Call:
        num_rotated = shapes.heads + shapes.kv_heads
        heads = random_bfloat16(rows, shapes.heads + 2 * shapes.kv_heads, shapes.head_dim)[:, :num_rotated]
        cos, sin = random_bfloat16(rows, 1, shapes.head_dim), random_bfloat16(rows, 1, shapes.head_dim)
        return lambda: ops.rotary(heads, cos, sin)

    return make


def _greedy(rows: int, vocab: int) -> Make:
    """The largest logit of each row and where it is."""

    def make(name: str, _ops: OpTable) -> Call:
        logits = torch.randn(rows, vocab)
        return (lambda: native_row_max(logits)) if name == "native" else (lambda: logits.max(dim=-1))

    return make


def _ranked(rows: int, vocab: int) -> Make:
    """The first tokens of each row in rank order, which top_k leaves."""

    def make(name: str, _ops: OpTable) -> Call:
        scores = -torch.rand(rows, vocab)
        rank = native_rank if name == "native" else rank_tokens
        return lambda: rank(scores, _RANKED)

    return make


def _drawn(rows: int, vocab: int) -> Make:
    """A token for each row at temperature 0.8, noise and all."""

    def make(name: str, _ops: OpTable) -> Call:
        logits = 3 * torch.randn(rows, vocab)
        settings = [SamplingRow(SamplingParams(temperature=0.8), seed, 0, 0, (), ()) for seed in range(rows)]
        batch, tops = SamplingBatch.build(settings, vocab), logits.amax(dim=-1)
        draw = native_draw if name == "native" else draw_tokens
        return lambda: draw(logits, tops, batch)

    return make
