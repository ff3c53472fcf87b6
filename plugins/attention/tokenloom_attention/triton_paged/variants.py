"""The kernels of `triton_paged` and `triton_flash` that a card runs, as launches without memory.

`benchmarks/triton_gate.py` compiles them ahead of time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import torch

from tokenloom.interfaces.attention import AttentionBatch, AttentionLayer
from tokenloom.ops.kernel_launch import KernelLaunch
from tokenloom_attention.triton_flash.launches import flash_launch
from tokenloom_attention.triton_paged.launches import attention_launches, store_launch
from tokenloom_attention.triton_paged.plan import StepPlan
from tokenloom_attention.triton_paged.tuning import tuning_for
from tokenloom_attention.triton_paged.validity import WITHOUT_E4M3

__all__ = ["Variant", "attention_variants"]

HEAD_DIMS = (64, 80, 128, 256)
"""One size for each width of tiles, and one that is padded."""

NUM_KV_HEADS, GROUP, BLOCK_SIZE = 8, 4, 16


@final
@dataclass(frozen=True, slots=True)
class Variant:
    """A launch with a name, e.g. "prompt, head_dim 128, bfloat16".

    Attributes:
        products: whether it multiplies matrices, in a dtype of the matrix units.
        is_wide: whether its tiles are large enough for a card's fastest instructions, which take 64 rows and more.
    """

    name: str
    launch: KernelLaunch
    products: bool = False
    is_wide: bool = False


@final
@dataclass(frozen=True, slots=True)
class _Case:
    head_dim: int
    dtype: torch.dtype
    stored: torch.dtype
    window: int | None = None
    soft_cap: float | None = None
    has_tree: bool = False

    @property
    def name(self) -> str:
        parts = [f"head_dim {self.head_dim}", _name(self.dtype)]
        parts += [f"cache {_name(self.stored)}"] if self.stored != self.dtype else []
        parts += ["window"] if self.window else []
        parts += ["soft cap"] if self.soft_cap else []
        parts += ["tree"] if self.has_tree else []
        return ", ".join(parts)


def attention_variants(card: str, head_dims: tuple[int, ...] = HEAD_DIMS) -> Iterator[Variant]:
    """The kernels for a card of `tokenloom.testing.kernel_gate`, in the tiles of its tuning: each head size, plain and
    with everything that a layer can ask for, and with each kind of cache that the card can have."""
    kinds = [torch.bfloat16, torch.int8] if card in WITHOUT_E4M3 else [torch.bfloat16, torch.int8, torch.float8_e4m3fn]
    for head_dim in head_dims:
        for stored in kinds:
            case = _Case(head_dim, torch.bfloat16, stored)
            yield from _paged(card, case)
            yield from _paged(card, replace(case, window=4096, soft_cap=30.0, has_tree=True))
            yield Variant(
                f"store, {case.name}", store_launch(*_cache(case), *_new_tokens(case), _empty(64, torch.int64))
            )
        yield from _flash(card, _Case(head_dim, torch.bfloat16, torch.bfloat16))
        yield from _flash(card, _Case(head_dim, torch.bfloat16, torch.bfloat16, window=4096, soft_cap=30.0))
    yield from _paged(card, _Case(128, torch.float32, torch.float32))


def _paged(card: str, case: _Case) -> Iterator[Variant]:
    """Decode and verification, which are split, and prompts."""
    tuning = tuning_for(card, case.head_dim, case.dtype)
    few = sorted({tuning.fewest, tuning.few.rows})
    for tiles in [replace(tuning.few, rows=rows) for rows in few]:
        tokens = tiles.rows // GROUP
        plan = StepPlan(tiles, 64, tokens, num_splits=8, split_query_len=tokens, split_span=512)
        attend, combine = _attention(case, plan)
        yield Variant(f"{tiles.rows} rows, {case.name}", attend, case.dtype != torch.float32, tiles.rows >= 64)
        if tiles.rows == tuning.fewest and case.dtype == case.stored and not case.has_tree:
            yield Variant(f"combine, {case.name}", combine)
    attend = _attention(case, StepPlan(tuning.many, 64, 0))[0]
    yield Variant(f"prompt, {case.name}", attend, case.dtype != torch.float32, tuning.many.rows >= 64)


def _flash(card: str, case: _Case) -> Iterator[Variant]:
    tiles = tuning_for(card, case.head_dim, case.dtype).whole
    query, cu_seqlens = _query(case), _empty(17, torch.int32)
    lse = torch.empty(query.shape[:2], device="meta")
    lens = (cu_seqlens, cu_seqlens, _empty(16, torch.int32))
    launch = flash_launch(query, lse, query, *_new_tokens(case), lens, [3] * 15 + [19], _layer(case), tiles)
    yield Variant(f"contiguous prompt, {case.name}", launch, True, tiles.rows >= 64)


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
    return AttentionLayer(0, 0, case.head_dim**-0.5, case.window, case.soft_cap)


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
