"""The attention plugin `naive`: the formula as it stands in a textbook, one request at a time, over a paged cache.

All scores of a request, [Hq, new tokens, cached tokens] in fp32, exist at once: memory that a tiled kernel never needs.
Slow on purpose; to read, and to measure the others against (`benchmarks/attention_tiling.py`).

Source: Vaswani et al., Attention Is All You Need (2017), equation 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

__all__ = ["NaiveBackend", "NaiveConfig", "NaiveMetadata"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@final
class NaiveConfig(AttentionConfig):
    """`naive` has no settings."""

    def build(self, context: AttentionContext) -> NaiveBackend:
        """Constructs the backend.

        Raises:
            CapabilityError: if the context asks for what the backend cannot do; holds every reason.
        """
        if reasons := list(_reasons_against(context)):
            raise CapabilityError(reasons)
        return NaiveBackend(context)


@final
@dataclass(frozen=True, slots=True)
class NaiveMetadata(AttentionMetadata):
    """The step, as it is. What a request sees is worked out again in every layer."""

    batch: AttentionBatch


@final
@dataclass(frozen=True, slots=True)
class _Request:
    """One request's share of a step.

    Attributes:
        rows: its R query rows.
        slots: int64 [S], where its cached tokens lie, the new ones included.
        visible: bool [R, S], which of them each row sees.
    """

    rows: slice
    slots: torch.Tensor
    visible: torch.Tensor


@final
class NaiveBackend(AttentionBackend):
    """Keys and values in two tensors [num_blocks, BS, Hkv, D]."""

    def __init__(self, context: AttentionContext) -> None:
        self._context = context

    def kv_cache_spec(self, num_blocks: int) -> KVCacheSpec:
        """Two tensors [num_blocks, BS, Hkv, D] of the context's dtype: keys, values."""
        context = self._context
        shape = (num_blocks, context.block_size, context.num_kv_heads, context.head_dim)
        page_bytes = 2 * torch.Size(shape[1:]).numel() * context.dtype.itemsize
        return KVCacheSpec((shape, shape), (context.dtype, context.dtype), page_bytes)

    def prepare(self, batch: AttentionBatch) -> NaiveMetadata:
        """Keeps the batch."""
        return NaiveMetadata(batch)

    def write_kv(
        self, kv: Sequence[torch.Tensor], key: torch.Tensor, value: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        """Stores the tokens that have a slot; see `AttentionBackend.write_kv`."""
        assert isinstance(metadata, NaiveMetadata), f"metadata of another backend: {type(metadata).__name__}"
        slots = metadata.batch.slot_mapping
        is_stored = slots >= 0
        for cache, new in zip(kv, (key, value), strict=True):
            cache.flatten(0, 1)[slots[is_stored]] = new[is_stored]

    def forward(
        self, query: torch.Tensor, kv: Sequence[torch.Tensor], layer: AttentionLayer, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """One request after the other; see `AttentionBackend.forward`.

        With `deterministic`, one row after the other, over the tokens that it sees: the shapes of a row's products then
        depend on their number alone.
        """
        assert isinstance(metadata, NaiveMetadata), f"metadata of another backend: {type(metadata).__name__}"
        keys, values = (cache.flatten(0, 1) for cache in kv)  # [num_slots, Hkv, D]
        out = torch.zeros(query.shape, dtype=query.dtype, device=query.device)  # [T, Hq, D]
        for request in _requests(metadata.batch, layer.window, self._context.block_size):
            for part in _single_rows(request) if self._context.deterministic else (request,):
                found = attend(query[part.rows], keys[part.slots], values[part.slots], part.visible, layer)
                out[part.rows] = found.to(out.dtype)
        return out

    def copy_slots(self, kv: Sequence[torch.Tensor], source: torch.Tensor, target: torch.Tensor) -> None:
        """Reads all of `source`, then writes `target`; see `AttentionBackend.copy_slots`."""
        for cache in kv:
            cache.flatten(0, 1)[target] = cache.flatten(0, 1)[source]

    def export_blocks(self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The layout is the canonical one: (K, V), each [n, BS, Hkv, D]."""
        return tuple(cache[block_ids] for cache in kv)

    def import_blocks(
        self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor, content: Sequence[torch.Tensor]
    ) -> None:
        """Writes whole blocks; see `AttentionBackend.import_blocks`."""
        for cache, blocks in zip(kv, content, strict=True):
            cache[block_ids] = blocks


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor, layer: AttentionLayer
) -> torch.Tensor:
    """softmax(scale q k^T) v in fp32, with every score in memory at once.

    Args:
        query: [R, Hq, D].
        key, value: [S, Hkv, D]; what no row sees may be NaN.
        visible: bool [R, S].
        layer: scale, soft cap and sinks.

    Returns:
        fp32 [R, Hq, D]; rows that see nothing are zero.
    """
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads = key.shape[1]
    q = query.float().view(num_rows, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)  # [Hkv, group, R, D]
    k = key.float().permute(1, 2, 0)[:, None]  # [Hkv, 1, D, S]
    scores = (q @ k) * layer.softmax_scale  # [Hkv, group, R, S]
    if layer.soft_cap is not None:
        scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
    scores = scores.masked_fill(~visible, float("-inf"))
    if layer.sinks is not None:  # one more score in each row, whose weight goes nowhere
        sinks = layer.sinks.view(num_kv_heads, -1, 1, 1).expand(-1, -1, num_rows, 1)  # [Hkv, group, R, 1]
        scores = torch.cat((scores, sinks), dim=-1)  # [Hkv, group, R, S + 1]
    weights = torch.softmax(scores, dim=-1)[..., : visible.shape[1]]
    weights = weights.masked_fill(~visible, 0.0)  # a row of -inf alone gives NaN
    seen = visible.any(dim=0)[:, None, None]  # 0 * NaN is NaN: what nobody sees must be zero
    v = value.float().where(seen, 0.0).transpose(0, 1)[:, None]  # [Hkv, 1, S, D]
    return (weights @ v).permute(2, 0, 1, 3).reshape(num_rows, num_heads, head_dim)


def _requests(batch: AttentionBatch, window: int | None, block_size: int) -> Iterator[_Request]:
    """The requests that have new tokens; padding is left out."""
    first_row = 0
    for index, (num_rows, seq_len) in enumerate(zip(batch.query_lens_cpu, batch.seq_lens_cpu, strict=True)):
        rows = slice(first_row, first_row + num_rows)
        first_row += num_rows
        if num_rows == 0 or seq_len == 0:
            continue
        indices = torch.arange(seq_len, device=batch.positions.device)  # [S]
        slots = batch.block_table[index].long()[indices // block_size] * block_size + indices % block_size
        yield _Request(rows, slots, _visible(batch, rows, indices, window))


def _visible(batch: AttentionBatch, rows: slice, indices: torch.Tensor, window: int | None) -> torch.Tensor:
    """bool [R, S]: which of a request's tokens, at `indices` of its sequence, each of its new ones sees."""
    positions = batch.positions[rows]  # [R]
    num_rows = positions.shape[0]
    num_computed = indices.shape[0] - num_rows
    if batch.tree_mask is None:
        visible = indices <= num_computed + torch.arange(num_rows, device=indices.device)[:, None]
    else:
        prefix = torch.ones(num_rows, num_computed, dtype=torch.bool, device=indices.device)
        visible = torch.cat((prefix, batch.tree_mask[rows, :num_rows]), dim=1)
    if window is not None:
        # A tree's nodes share positions: where they lie in the sequence says nothing of how far away they are.
        places = torch.cat((indices[:num_computed], positions))  # [S]
        visible &= places > positions[:, None] - window
    return visible


def _single_rows(request: _Request) -> Iterator[_Request]:
    for row, visible in enumerate(request.visible, request.rows.start):
        yield _Request(slice(row, row + 1), request.slots[visible], visible[visible][None])


def _reasons_against(context: AttentionContext) -> Iterator[str]:
    if context.num_heads % context.num_kv_heads:
        yield (
            f"attention=naive needs num_heads to be a multiple of num_kv_heads, got {context.num_heads} and "
            f"{context.num_kv_heads}; check the model's config"
        )
    if context.dtype not in DTYPES:
        yield (
            f"attention=naive needs a dtype in (float32, bfloat16, float16), got {context.dtype}; "
            "try model.dtype=bfloat16"
        )
    if context.deterministic and context.device.type != "cpu" and context.dtype != torch.float32:
        yield (
            f"attention=naive is deterministic on cpu only, got {context.device} in {context.dtype}; "
            "try engine.deterministic=false"
        )
