"""The kernels of `triton_paged` and `triton_flash` that a card runs, as launches without memory.

`benchmarks/triton_gate.py` compiles them ahead of time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import torch

from tokenloom.interfaces.attention import AttentionBatch, AttentionLayer
from tokenloom.ops.kernel_launch import KernelLaunch, KernelVariant
from tokenloom.ops.triton_card import has_e4m3
from tokenloom_attention.triton_flash.launches import flash_launch
from tokenloom_attention.triton_paged.launches import attention_launches, store_launch
from tokenloom_attention.triton_paged.plan import StepPlan
from tokenloom_attention.triton_paged.tuning import tuning_for

__all__ = ["attention_variants"]

HEAD_DIMS = (64, 80, 128, 256)
"""One size for each width of tiles, and one that is padded."""

_HEAD_DIMS_WITH_SINKS = (64, 128)
"""Models with sinks have windows, no caps, and small heads."""

NUM_KV_HEADS, GROUP, BLOCK_SIZE = 8, 4, 16


@final
@dataclass(frozen=True, slots=True)
class _Case:
    head_dim: int
    dtype: torch.dtype
    stored: torch.dtype
    window: int | None = None
    soft_cap: float | None = None
    has_tree: bool = False
    has_sinks: bool = False

    @property
    def name(self) -> str:
        parts = [f"head_dim {self.head_dim}", _name(self.dtype)]
        parts += [f"cache {_name(self.stored)}"] if self.stored != self.dtype else []
        parts += ["window"] if self.window else []
        parts += ["soft cap"] if self.soft_cap else []
        parts += ["tree"] if self.has_tree else []
        parts += ["sinks"] if self.has_sinks else []
        return ", ".join(parts)


def attention_variants(card: str, head_dims: tuple[int, ...] = HEAD_DIMS) -> Iterator[KernelVariant]:
    """The kernels for a card of `tokenloom.testing.kernel_gate`, in the tiles of its tuning: each head size, plain and
    with a window, a cap and a tree, and with each kind of cache that the card can have; and sinks."""
    kinds = [torch.bfloat16, torch.int8, torch.float8_e4m3fn] if has_e4m3(card) else [torch.bfloat16, torch.int8]
    for head_dim in head_dims:
        for stored in kinds:
            case = _Case(head_dim, torch.bfloat16, stored)
            yield from _paged(card, case)
            yield from _paged(card, replace(case, window=4096, soft_cap=30.0, has_tree=True))
            yield KernelVariant(
                f"store, {case.name}", store_launch(*_cache(case), *_new_tokens(case), _empty(64, torch.int64))
            )
        yield from _flash(card, _Case(head_dim, torch.bfloat16, torch.bfloat16))
        yield from _flash(card, _Case(head_dim, torch.bfloat16, torch.bfloat16, window=4096, soft_cap=30.0))
        if head_dim in _HEAD_DIMS_WITH_SINKS:
            with_sinks = _Case(head_dim, torch.bfloat16, torch.bfloat16, window=4096, has_sinks=True)
            yield from _paged(card, with_sinks)
            yield from _flash(card, with_sinks)
    yield from _paged(card, _Case(128, torch.float32, torch.float32))


def _paged(card: str, case: _Case) -> Iterator[KernelVariant]:
    """Decode and verification, which are split, and prompts."""
    tuning = tuning_for(card, case.head_dim, case.dtype)
    few = sorted({tuning.fewest, tuning.few.rows})
    for tiles in [replace(tuning.few, rows=rows) for rows in few]:
        tokens = tiles.rows // GROUP
        plan = StepPlan(tiles, 64, tokens, num_splits=8, split_query_len=tokens, split_span=512)
        attend, combine = _attention(case, plan)
        yield KernelVariant(f"{tiles.rows} rows, {case.name}", attend, case.dtype != torch.float32, tiles.rows >= 64)
        if tiles.rows == tuning.fewest and case.dtype == case.stored and case.window is None:
            yield KernelVariant(f"combine, {case.name}", combine)
    attend = _attention(case, StepPlan(tuning.many, 64, 0))[0]
    yield KernelVariant(f"prompt, {case.name}", attend, case.dtype != torch.float32, tuning.many.rows >= 64)


def _flash(card: str, case: _Case) -> Iterator[KernelVariant]:
    tiles = tuning_for(card, case.head_dim, case.dtype).whole
    query, cu_seqlens = _query(case), _empty(17, torch.int32)
    lse = torch.empty(query.shape[:2], device="meta")
    lens = (cu_seqlens, cu_seqlens, _empty(16, torch.int32))
    launch = flash_launch(query, lse, query, *_new_tokens(case), lens, [3] * 15 + [19], _layer(case), tiles)
    yield KernelVariant(f"contiguous prompt, {case.name}", launch, True, tiles.rows >= 64)


def _attention(case: _Case, plan: StepPlan) -> list[KernelLaunch]:
    query = _query(case)
    batch = AttentionBatch(
        cu_seqlens_q=_empty(17, torch.int32),
        seq_lens=_empty(16, torch.int32),
        positions=_empty(64, torch.int64),
        block_table=torch.empty(16, 512, dtype=torch.int32, device="meta"),
        slot_mapping=_empty(64, torch.int64),
        tree_mask=torch.empty(64, 32, dtype=torch.bool, device="meta") if case.has_tree else None,
        query_lens_cpu=(),
        seq_lens_cpu=(),
        window=case.window,
    )
    words = torch.empty(64, 1, dtype=torch.int32, device="meta") if case.has_tree else None
    return attention_launches(query, query, *_cache(case), batch, words, _layer(case), plan)


def _layer(case: _Case) -> AttentionLayer:
    sinks = torch.empty(NUM_KV_HEADS * GROUP, device="meta") if case.has_sinks else None
    return AttentionLayer(0, 0, case.head_dim**-0.5, case.window, case.soft_cap, sinks)


def _query(case: _Case) -> torch.Tensor:
    return torch.empty(64, NUM_KV_HEADS * GROUP, case.head_dim, dtype=case.dtype, device="meta")


def _new_tokens(case: _Case) -> tuple[torch.Tensor, torch.Tensor]:
    key = torch.empty(64, NUM_KV_HEADS, case.head_dim, dtype=case.dtype, device="meta")
    return key, key


def _cache(case: _Case) -> tuple[torch.Tensor, torch.Tensor | None]:
    cache = torch.empty(99, 2, NUM_KV_HEADS, BLOCK_SIZE, case.head_dim, dtype=case.stored, device="meta")
    return cache, None if case.stored == case.dtype else torch.empty(cache.shape[:4], device="meta")


def _empty(size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device="meta")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
