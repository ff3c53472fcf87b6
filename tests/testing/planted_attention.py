"""A small attention backend with a switch for each kind of bug that the conformance suite must catch.

Import it as `from tests.testing.planted_attention import attention_info`. With `bug="none"` it is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch

from tokenloom.interfaces.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionConfig,
    AttentionContext,
    AttentionLayer,
    AttentionMetadata,
    KVCacheSpec,
)
from tokenloom.interfaces.contract import Capabilities, PluginInfo

__all__ = ["ALL_FLAGS", "PlantedAttention", "PlantedAttentionConfig", "attention_info"]

READ_TOO_FAR = ("reads the whole last block", "unwritten slots times zero", "sees what looks plausible")

ALL_FLAGS = frozenset({"sliding_window", "soft_cap", "sinks", "tree_mask", "deterministic"})


def attention_info(flags: frozenset[str] = ALL_FLAGS, **capabilities: object) -> PluginInfo:
    """The declaration; `flags` and other capabilities may claim less than the backend can."""
    return PluginInfo(
        kind="attention",
        name="planted",
        config="tests.testing.planted_attention:PlantedAttentionConfig",
        contract=(1, 1),
        summary="An attention backend with a bug to choose.",
        capabilities=replace(Capabilities(devices=("cpu",), flags=flags), **capabilities),  # type: ignore[arg-type]
    )


@final
class PlantedAttentionConfig(AttentionConfig):
    """Which bug is in it."""

    bug: str = "none"

    def build(self, context: AttentionContext) -> PlantedAttention:
        return PlantedAttention(context, self.bug)


@final
@dataclass(frozen=True, slots=True)
class _Metadata(AttentionMetadata):
    batch: AttentionBatch
    slots: torch.Tensor
    is_stored: torch.Tensor


@final
class PlantedAttention(AttentionBackend):
    """Loops over requests, heads folded, in fp32; K and V are [num_blocks, BS, Hkv, D]."""

    def __init__(self, context: AttentionContext, bug: str) -> None:
        self._context = context
        self._bug = bug
        self._kept: dict[int, _Metadata] = {}
        self._last_batch: AttentionBatch | None = None

    def kv_cache_spec(self, num_blocks: int) -> KVCacheSpec:
        context = self._context
        page = (context.block_size, context.num_kv_heads, context.head_dim)
        dtype = torch.bfloat16 if self._bug == "cache of bfloat16" else context.dtype
        page_bytes = 2 * page[0] * page[1] * page[2] * dtype.itemsize
        if self._bug == "page bytes of one tensor":
            page_bytes //= 2
        if self._bug == "page bytes grow with the pool":
            page_bytes *= num_blocks
        shape = (num_blocks, *page)
        return KVCacheSpec((shape, shape), (dtype, dtype), page_bytes)

    def prepare(self, batch: AttentionBatch) -> AttentionMetadata:
        self._last_batch = batch
        if self._bug == "plan kept by address":
            address = batch.slot_mapping.data_ptr()
            return self._kept.setdefault(address, self._plan(replace(batch, block_table=batch.block_table.clone())))
        return self._plan(batch)

    def _plan(self, batch: AttentionBatch) -> _Metadata:
        is_stored = batch.slot_mapping >= 0
        if self._bug == "negative slots stored":
            is_stored = torch.ones_like(is_stored)
        if self._bug == "only -1 is not stored":
            is_stored = batch.slot_mapping != -1
        slots = batch.slot_mapping
        if self._bug == "16-bit slots":
            slots = slots.to(torch.int16).long() % (self._context.block_size * 70_000)
        return _Metadata(batch, slots, is_stored)

    def write_kv(
        self, kv: Sequence[torch.Tensor], key: torch.Tensor, value: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        assert isinstance(metadata, _Metadata)
        if self._bug == "keys read as if contiguous":
            key = _as_if_contiguous(key)
        for cache, new in zip(kv, (key, value), strict=True):
            slots = metadata.slots[metadata.is_stored]
            cache.flatten(0, 1)[slots] = new[metadata.is_stored].to(cache.dtype)
            if self._bug == "clears the rest of the block":
                cache.flatten(0, 1)[slots[slots % self._context.block_size == 0] + self._context.block_size - 1] = 0
            if self._bug == "writes one slot too many" and slots.numel():
                cache.flatten(0, 1)[(slots[-1] + 1) % (cache.shape[0] * cache.shape[1])] = new[metadata.is_stored][-1]

    def forward(
        self, query: torch.Tensor, kv: Sequence[torch.Tensor], layer: AttentionLayer, metadata: AttentionMetadata
    ) -> torch.Tensor:
        assert isinstance(metadata, _Metadata)
        batch = metadata.batch
        if self._bug == "newest batch for every group":
            assert self._last_batch is not None
            batch = self._last_batch
            layer = replace(layer, window=batch.window)
        if self._bug == "query read as if contiguous":
            query = _as_if_contiguous(query)
        if self._bug == "query scaled in place":
            query.mul_(layer.softmax_scale)
            layer = replace(layer, softmax_scale=1.0)
        if self._bug == "cache rounded by reading":
            kv[1].nan_to_num_()
        out = torch.zeros(query.shape, dtype=query.dtype)
        if self._bug == "padding rows left as they are":
            out.fill_(torch.nan)
        start = 0
        for request, (num_new, seq_len) in enumerate(zip(batch.query_lens_cpu, batch.seq_lens_cpu, strict=True)):
            stop = start + num_new
            if seq_len:
                out[start:stop] = self._attend(query, kv, layer, batch, (request, start, stop, seq_len)).to(out.dtype)
            start = stop
        if self._bug == "wrong result dtype":
            return out.double()
        return out

    def _attend(
        self,
        query: torch.Tensor,
        kv: Sequence[torch.Tensor],
        layer: AttentionLayer,
        batch: AttentionBatch,
        span: tuple[int, int, int, int],
    ) -> torch.Tensor:
        request, start, stop, seq_len = span
        read_len = seq_len
        block_size = self._context.block_size
        if self._bug in READ_TOO_FAR:
            read_len = -(-seq_len // block_size) * block_size
        key, value = (self._gather(cache, batch, request, read_len) for cache in kv)  # [S, Hq, D]
        visible = self._visible(batch, layer, (start, stop), seq_len, read_len)  # [R, S]
        if self._bug != "unwritten slots times zero":
            value = torch.where(visible.any(0)[:, None, None], value, 0.0)
        if self._bug == "sees what looks plausible":
            visible = visible | ((torch.arange(read_len) >= seq_len) & ~key.isnan().any(2).any(1))
            key, value = key.nan_to_num(), value.nan_to_num()
        q = self._scaled(query[start:stop], layer)
        if not self._context.deterministic:
            return self._combined(q, key, value, visible, layer)
        if self._bug == "scale missing where deterministic":
            q = query[start:stop].float()
        rows: list[torch.Tensor] = []
        for row, seen in zip(q, visible):  # in shapes that depend on the row alone
            rows.append(self._combined(row[None], key[seen], value[seen], seen[seen][None], layer))
        # Differences far below any tolerance, as another order of summation makes them.
        if self._bug == "sums depend on the batch":
            rows[0] = rows[0] * (1.0 + 2.0**-20 * len(batch.query_lens_cpu))
        if self._bug == "sums depend on the chunk":
            rows[-1] = rows[-1] * (1.0 + 2.0**-20 * len(rows))
        return torch.cat(rows)

    def _combined(
        self, q: torch.Tensor, key: torch.Tensor, value: torch.Tensor, visible: torch.Tensor, layer: AttentionLayer
    ) -> torch.Tensor:
        scores = self._masked(torch.einsum("rhd,shd->hrs", q, key), visible, layer)
        if layer.sinks is None or self._bug == "sinks ignored":
            return torch.einsum("hrs,shd->rhd", torch.softmax(scores, dim=-1), value)
        sinks = layer.sinks
        if self._bug == "sinks scaled":
            sinks = sinks * layer.softmax_scale
        if self._bug == "sinks of KV heads":
            sinks = sinks[torch.arange(sinks.shape[0]) // (self._context.num_heads // self._context.num_kv_heads)]
        column = sinks[:, None, None].expand(-1, scores.shape[1], 1)
        weights = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)
        if self._bug == "sinks stand for the last key":
            weights[:, :, -2] += weights[:, :, -1]
        return torch.einsum("hrs,shd->rhd", weights[..., :-1], value)

    def _gather(self, cache: torch.Tensor, batch: AttentionBatch, request: int, read_len: int) -> torch.Tensor:
        """fp32 [S, Hq, D]: keys or values of a sequence, repeated for its query heads."""
        block_size = self._context.block_size
        if self._bug == "table read in blocks of 16" and block_size > 1:
            block_size = 16
        slots = torch.arange(read_len)
        table = batch.block_table[request].long()
        blocks = table[(slots // block_size).clamp(max=table.shape[0] - 1)]
        tokens = cache[blocks, slots % block_size % cache.shape[1]].float()  # [S, Hkv, D]
        group = self._context.num_heads // self._context.num_kv_heads
        if self._bug == "heads tiled":
            return tokens.repeat(1, group, 1)
        return tokens.repeat_interleave(group, dim=1)

    def _scaled(self, query: torch.Tensor, layer: AttentionLayer) -> torch.Tensor:
        head_dim, scale = self._context.head_dim, layer.softmax_scale
        if self._bug == "scale of the padded head":
            scale = scale * (head_dim / (1 << (head_dim - 1).bit_length())) ** 0.5
        if self._bug == "scale of its own":
            scale = head_dim**-0.5
        return query.float() * scale

    def _masked(self, scores: torch.Tensor, visible: torch.Tensor, layer: AttentionLayer) -> torch.Tensor:
        cap = layer.soft_cap
        if self._bug == "scores clamped at 80":
            scores = scores.clamp(-80.0, 80.0)
        if self._bug == "scores rounded":
            scores = scores.to(torch.bfloat16).float()
        if self._bug == "cap after the mask" and cap is not None:
            return cap * torch.tanh(torch.where(visible, scores, float("-inf")) / cap)
        if cap is not None and self._bug != "cap ignored":
            scores = cap * torch.tanh(scores / cap)
        return torch.where(visible, scores, float("-inf"))

    def _visible(
        self, batch: AttentionBatch, layer: AttentionLayer, rows: tuple[int, int], seq_len: int, read_len: int
    ) -> torch.Tensor:
        """bool [R, S]: does the row see the slot."""
        start, stop = rows
        num_new, num_computed = stop - start, seq_len - (stop - start)
        row_slots = torch.arange(num_computed, seq_len)[:, None]
        row_positions = batch.positions[start:stop][:, None]
        slots = torch.arange(read_len)[None, :]
        slot_positions = torch.cat([torch.arange(num_computed), batch.positions[start:stop]])
        slot_positions = torch.cat([slot_positions, torch.arange(seq_len, read_len)])[None, :]
        if self._bug == "causal leak by one":
            row_slots = row_slots + (row_slots < seq_len - 1).long()
        if self._bug == "window by slot":
            row_positions, slot_positions = row_slots, slots
        visible = slots <= row_slots
        if self._bug == "positions instead of slots":
            visible = slots <= row_positions
        elif batch.tree_mask is not None and self._bug != "tree mask ignored":
            visible = torch.zeros(num_new, read_len, dtype=torch.bool)
            visible[:, :num_computed] = True
            columns = batch.tree_mask[start:stop, :num_new]
            visible[:, num_computed:seq_len] = columns.T if self._bug == "tree mask transposed" else columns
        if self._bug == "chunks ignore what is cached":
            visible = visible & (slots >= num_computed) if num_new > 1 else visible
        if self._bug == "first 512 tokens only":
            visible = visible & (slots < max(512, num_computed))
        if self._bug == "reads the whole last block":
            visible = visible | (slots >= seq_len)
        return visible & self._in_window(row_positions, slot_positions, layer, num_new)

    def _in_window(
        self, row_positions: torch.Tensor, slot_positions: torch.Tensor, layer: AttentionLayer, num_new: int
    ) -> torch.Tensor:
        window = layer.window
        if window is None or self._bug == "window ignored":
            return torch.ones(1, 1, dtype=torch.bool)
        shift = {"window too wide": 1, "window too narrow": -1}.get(self._bug, 0)
        if self._bug == "window too wide in decode" and num_new == 1:
            shift = 1
        if self._bug == "large windows too wide" and window >= 64:
            shift = 1
        return slot_positions > row_positions - window - shift

    def copy_slots(self, kv: Sequence[torch.Tensor], source: torch.Tensor, target: torch.Tensor) -> None:
        for cache in kv[:1] if self._bug == "only keys copied" else kv:
            slots = cache.flatten(0, 1)
            if self._bug == "copies one after the other":
                for start, stop in zip(source.tolist(), target.tolist()):
                    slots[stop] = slots[start]
            else:
                slots[target] = slots[source]

    def export_blocks(self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self._bug == "export is a view" and block_ids.numel() == 2:
            low, high = sorted(block_ids.tolist())
            return tuple(cache[low : high + 1 : max(1, high - low)] for cache in kv)
        if self._bug == "export sorts the blocks":
            block_ids = block_ids.sort().values
        content = tuple(cache[block_ids] for cache in kv)
        if self._bug == "export drops the last slot":
            for part in content:
                part[:, -1] = 0
        if self._bug == "export heads first":
            return tuple(part.transpose(1, 2) for part in content)
        return content

    def import_blocks(
        self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor, content: Sequence[torch.Tensor]
    ) -> None:
        if self._bug == "export heads first":
            content = [part.transpose(1, 2) for part in content]
        if self._bug == "import cleans NaN":
            content = [part.nan_to_num() for part in content]
        if self._bug == "import drops values":
            content = (content[0], kv[1][block_ids])
        for cache, blocks in zip(kv, content, strict=True):
            cache[block_ids] = blocks


def _as_if_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """What a kernel reads that is told the shape and takes the strides for granted."""
    size = tensor.shape[1] * tensor.shape[2]
    return tensor.as_strided(tensor.shape, (size, tensor.shape[2], 1))
