"""The plainest attention backend: blocks in the canonical layout, dense fp32 attention; for testing the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from tokenloom.interfaces.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionContext,
    AttentionLayer,
    AttentionMetadata,
    KVCacheSpec,
)
from tokenloom.testing.attention_reference import reference_forward

__all__ = ["ReferenceBackend", "ReferenceMetadata"]


@final
@dataclass(frozen=True, slots=True)
class ReferenceMetadata(AttentionMetadata):
    """The batch itself."""

    batch: AttentionBatch


@final
class ReferenceBackend(AttentionBackend):
    """Keys and values in two tensors [num_blocks, BS, Hkv, D]."""

    def __init__(self, context: AttentionContext) -> None:
        self._context = context

    def kv_cache_spec(self, num_blocks: int) -> KVCacheSpec:
        context = self._context
        page = (context.block_size, context.num_kv_heads, context.head_dim)
        return KVCacheSpec(
            shapes=((num_blocks, *page), (num_blocks, *page)),
            dtypes=(context.dtype, context.dtype),
            page_bytes=2 * page[0] * page[1] * page[2] * context.dtype.itemsize,
        )

    def prepare(self, batch: AttentionBatch) -> ReferenceMetadata:
        return ReferenceMetadata(batch)

    def write_kv(
        self, kv: Sequence[torch.Tensor], key: torch.Tensor, value: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        assert isinstance(metadata, ReferenceMetadata), f"metadata of another backend: {type(metadata).__name__}"
        slots = metadata.batch.slot_mapping
        is_stored = slots >= 0
        for cache, new in zip(kv, (key, value), strict=True):
            cache.flatten(0, 1)[slots[is_stored]] = new[is_stored]

    def forward(
        self, query: torch.Tensor, kv: Sequence[torch.Tensor], layer: AttentionLayer, metadata: AttentionMetadata
    ) -> torch.Tensor:
        assert isinstance(metadata, ReferenceMetadata), f"metadata of another backend: {type(metadata).__name__}"
        return reference_forward(query, kv[0], kv[1], metadata.batch, layer).to(query.dtype)

    def copy_slots(self, kv: Sequence[torch.Tensor], source: torch.Tensor, target: torch.Tensor) -> None:
        for cache in kv:
            slots = cache.flatten(0, 1)
            slots[target] = slots[source]

    def export_blocks(self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(cache[block_ids] for cache in kv)

    def import_blocks(
        self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor, content: Sequence[torch.Tensor]
    ) -> None:
        for cache, blocks in zip(kv, content, strict=True):
            cache[block_ids] = blocks
