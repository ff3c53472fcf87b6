"""The attention plugin `triton_flash`: prompts over contiguous keys and values, everything else like `triton_paged`.

README.md says which requests go where, and what that reads and writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from tokenloom.errors import CapabilityError
from tokenloom.interfaces.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionConfig,
    AttentionContext,
    AttentionLayer,
    AttentionMetadata,
    KVCacheSpec,
)
from tokenloom_attention.triton_flash.launches import flash_launch
from tokenloom_attention.triton_paged.backend import TritonPagedBackend, TritonPagedConfig, TritonPagedMetadata
from tokenloom_attention.triton_paged.validity import reasons_against

__all__ = ["TritonFlashBackend", "TritonFlashConfig", "TritonFlashMetadata"]


@final
class TritonFlashConfig(AttentionConfig):
    """`triton_flash` has no settings: it stores keys and values in the model's dtype."""

    def build(self, context: AttentionContext) -> TritonFlashBackend:
        """Constructs the backend; kernels are compiled when they are first launched.

        Raises:
            CapabilityError: if the context asks for what the backend cannot do; holds every reason.
        """
        if reasons := reasons_against("triton_flash", context, "auto"):
            raise CapabilityError(reasons)
        return TritonFlashBackend(context)


@final
@dataclass(frozen=True, slots=True)
class TritonFlashMetadata(AttentionMetadata):
    """One step's work.

    Attributes:
        paged: the step as `triton_paged` sees it, without the fresh requests if there are such.
        has_paged: whether there are requests with cached tokens, or padding.
        blocks, offsets: int64 [T], where each new token is stored, padding in the null block; None if no request is
            fresh, or all are to take one path.
    """

    paged: TritonPagedMetadata
    has_paged: bool
    blocks: torch.Tensor | None
    offsets: torch.Tensor | None


@final
class TritonFlashBackend(AttentionBackend):
    """The cache of `triton_paged`. Requests that have nothing cached read their keys and values gathered."""

    def __init__(self, context: AttentionContext) -> None:
        self._context = context
        self._paged = TritonPagedBackend(context, TritonPagedConfig())

    def kv_cache_spec(self, num_blocks: int) -> KVCacheSpec:
        """One tensor [num_blocks, 2, Hkv, BS, D]."""
        return self._paged.kv_cache_spec(num_blocks)

    def prepare(self, batch: AttentionBatch) -> TritonFlashMetadata:
        """Parts the requests: fresh ones, unless trees or `deterministic` want one path for all."""
        is_fresh = [query == seq for query, seq in zip(batch.query_lens_cpu, batch.seq_lens_cpu, strict=True)]
        has_fresh = any(is_fresh) and batch.tree_mask is None and not self._context.deterministic
        paged = self._paged.prepare_without_fresh(batch) if has_fresh else self._paged.prepare(batch)
        if not has_fresh:
            return TritonFlashMetadata(paged, True, None, None)
        slots = batch.slot_mapping.clamp(min=0)
        size = self._context.block_size
        return TritonFlashMetadata(paged, not all(is_fresh), slots // size, slots % size)

    def write_kv(
        self, kv: Sequence[torch.Tensor], key: torch.Tensor, value: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        """Stores the new tokens; see `AttentionBackend.write_kv`."""
        assert isinstance(metadata, TritonFlashMetadata), f"metadata of another backend: {type(metadata).__name__}"
        self._paged.write_kv(kv, key, value, metadata.paged)

    def forward(
        self, query: torch.Tensor, kv: Sequence[torch.Tensor], layer: AttentionLayer, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """A launch for fresh requests, and one or two for the others; see `AttentionBackend.forward`."""
        assert isinstance(metadata, TritonFlashMetadata), f"metadata of another backend: {type(metadata).__name__}"
        batch, out = metadata.paged.batch, torch.empty(query.shape, dtype=query.dtype, device=query.device)
        if metadata.blocks is not None:
            key, value = (kv[0][metadata.blocks, which, :, metadata.offsets] for which in (0, 1))  # [T, Hkv, D]
            lens = (batch.cu_seqlens_q, batch.cu_seqlens_q, batch.seq_lens)
            tiles = self._paged.tiles_of_prompts()
            flash_launch(out, None, query, key, value, lens, batch.query_lens_cpu, layer, tiles).run()
        if metadata.has_paged:
            metadata.paged.launches.attend(out, query, kv[0], None, layer)
        return out

    def copy_slots(self, kv: Sequence[torch.Tensor], source: torch.Tensor, target: torch.Tensor) -> None:
        """Reads all of `source`, then writes `target`; see `AttentionBackend.copy_slots`."""
        self._paged.copy_slots(kv, source, target)

    def export_blocks(self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(K, V), each [n, BS, Hkv, D]."""
        return self._paged.export_blocks(kv, block_ids)

    def import_blocks(
        self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor, content: Sequence[torch.Tensor]
    ) -> None:
        """Writes what `export_blocks` returned; see `AttentionBackend.import_blocks`."""
        self._paged.import_blocks(kv, block_ids, content)
