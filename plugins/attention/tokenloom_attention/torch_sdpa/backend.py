"""The attention plugin `torch_sdpa`: paged KV cache and attention in plain PyTorch operations.

Few query rows per request (decode, verification) go through batched products, many (prefill) through SDPA; README.md
has the maths and the measurements behind the choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
import torch.nn.functional as F
from pydantic import Field

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
from tokenloom_attention.torch_sdpa.tiles import GroupedTile, SdpaTile, Tile, TileLimits, plan_tiles

__all__ = ["TorchSdpaBackend", "TorchSdpaConfig", "TorchSdpaMetadata"]

GROUPED_ROWS = 32
"""Above this many new tokens of a request, SDPA is as fast as grouped products and keeps no scores."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@final
class TorchSdpaConfig(AttentionConfig):
    """Settings of `torch_sdpa`."""

    tile_kib: int = Field(
        default=4096,
        ge=64,
        description="Most memory for the fp32 keys that one batched product reads, in KiB. Smaller tiles stay in the "
        "CPU's caches, larger ones start fewer operations.",
    )

    def build(self, context: AttentionContext) -> TorchSdpaBackend:
        """Constructs the backend.

        Raises:
            CapabilityError: if the context asks for what the backend cannot do; holds every reason.
        """
        reasons = []
        if context.num_heads % context.num_kv_heads:
            reasons.append(
                f"attention=torch_sdpa needs num_heads to be a multiple of num_kv_heads, got {context.num_heads} and "
                f"{context.num_kv_heads}; check the model's config"
            )
        if context.dtype not in DTYPES:
            reasons.append(
                f"attention=torch_sdpa needs a dtype in (float32, bfloat16, float16), got {context.dtype}; "
                "try model.dtype=bfloat16"
            )
        if context.deterministic and context.device.type != "cpu" and context.dtype != torch.float32:
            reasons.append(
                f"attention=torch_sdpa is deterministic on cpu only, got {context.device} in {context.dtype}; "
                "try engine.deterministic=false"
            )
        if reasons:
            raise CapabilityError(reasons)
        return TorchSdpaBackend(context, self)


@final
@dataclass(frozen=True, slots=True)
class TorchSdpaMetadata(AttentionMetadata):
    """One step's work.

    Attributes:
        batch: the step.
        stored: int64, token rows that are stored; None means all.
        slots: int64, their slots.
        plans: tiles by (window, whether SDPA can be used). Window, soft cap and sinks are facts of a layer, so the
            first layer with a new pair fills in its tiles; in most models that is one plan per step.
    """

    batch: AttentionBatch
    stored: torch.Tensor | None
    slots: torch.Tensor
    plans: dict[tuple[int | None, bool], tuple[Tile, ...]] = field(default_factory=dict)


@final
class TorchSdpaBackend(AttentionBackend):
    """Keys and values in two tensors [num_blocks, BS, Hkv, D]: a slot is one row, a (slot, head) one vector."""

    def __init__(self, context: AttentionContext, config: TorchSdpaConfig) -> None:
        self._context = context
        token_bytes = context.num_kv_heads * context.head_dim * 4
        self._limits = TileLimits(
            block_size=context.block_size,
            num_heads=context.num_heads,
            num_kv_heads=context.num_kv_heads,
            grouped_rows=GROUPED_ROWS,
            max_slots=max(1, config.tile_kib * 1024 // token_bytes),
            max_cells=1 << 22,
            deterministic=context.deterministic,
        )
        self._value_dtype = _product_dtype(context)

    def kv_cache_spec(self, num_blocks: int) -> KVCacheSpec:
        """Two tensors [num_blocks, BS, Hkv, D] of the context's dtype: keys, values."""
        context = self._context
        page = (context.block_size, context.num_kv_heads, context.head_dim)
        return KVCacheSpec(
            shapes=((num_blocks, *page), (num_blocks, *page)),
            dtypes=(context.dtype, context.dtype),
            page_bytes=2 * page[0] * page[1] * page[2] * context.dtype.itemsize,
        )

    def prepare(self, batch: AttentionBatch) -> TorchSdpaMetadata:
        """Finds the rows to store; tiles follow with the first layer that needs them."""
        assert sum(batch.query_lens_cpu) == batch.num_tokens, f"{batch.query_lens_cpu} against {batch.num_tokens} rows"
        is_stored = batch.slot_mapping >= 0
        if bool(is_stored.all()):
            return TorchSdpaMetadata(batch, None, batch.slot_mapping)
        stored = is_stored.nonzero().flatten()
        return TorchSdpaMetadata(batch, stored, batch.slot_mapping[stored])

    def write_kv(
        self, kv: Sequence[torch.Tensor], key: torch.Tensor, value: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        """Stores one row per new token; see `AttentionBackend.write_kv`."""
        assert isinstance(metadata, TorchSdpaMetadata), f"metadata of another backend: {type(metadata).__name__}"
        for cache, new in zip(kv, (key, value), strict=True):
            rows = new if metadata.stored is None else new.index_select(0, metadata.stored)
            cache.flatten(0, 1).index_copy_(0, metadata.slots, rows)

    def forward(
        self, query: torch.Tensor, kv: Sequence[torch.Tensor], layer: AttentionLayer, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Runs the step's tiles one after the other; see `AttentionBackend.forward`."""
        assert isinstance(metadata, TorchSdpaMetadata), f"metadata of another backend: {type(metadata).__name__}"
        keys, values = (cache.flatten(0, 1) for cache in kv)  # [num_slots, Hkv, D]
        out = torch.zeros(query.shape, dtype=query.dtype, device=query.device)  # [T, Hq, D]
        for tile in self._tiles(layer, metadata):
            if isinstance(tile, GroupedTile):
                self._attend_grouped(query, keys, values, layer, tile, out)
            else:
                self._attend_sdpa(query, keys, values, layer, tile, out)
        return out

    def copy_slots(self, kv: Sequence[torch.Tensor], source: torch.Tensor, target: torch.Tensor) -> None:
        """Reads all of `source`, then writes `target`; see `AttentionBackend.copy_slots`."""
        for cache in kv:
            slots = cache.flatten(0, 1)  # [num_slots, Hkv, D]
            slots.index_copy_(0, target, slots.index_select(0, source))

    def export_blocks(self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The layout is the canonical one: (K, V), each [n, BS, Hkv, D]."""
        return tuple(cache.index_select(0, block_ids) for cache in kv)

    def import_blocks(
        self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor, content: Sequence[torch.Tensor]
    ) -> None:
        """Writes whole blocks; see `AttentionBackend.import_blocks`."""
        for cache, blocks in zip(kv, content, strict=True):
            cache.index_copy_(0, block_ids, blocks)

    def _tiles(self, layer: AttentionLayer, metadata: TorchSdpaMetadata) -> tuple[Tile, ...]:
        plan = (layer.window, layer.soft_cap is None and layer.sinks is None)
        tiles = metadata.plans.get(plan)
        if tiles is None:
            tiles = metadata.plans[plan] = plan_tiles(metadata.batch, *plan, self._limits)
        return tiles

    def _attend_grouped(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        layer: AttentionLayer,
        tile: GroupedTile,
        out: torch.Tensor,
    ) -> None:
        num_spans, num_rows, num_slots = tile.shape
        num_kv_heads, head_dim = self._context.num_kv_heads, self._context.head_dim
        group = self._context.num_heads // num_kv_heads
        batch = num_spans * num_kv_heads
        q = query.index_select(0, tile.rows).view(num_spans, num_rows, num_kv_heads, group, head_dim)
        q = q.transpose(1, 2).reshape(batch, num_rows * group, head_dim).float() * layer.softmax_scale
        k = self._gather_heads(keys, tile, torch.float32)  # [n * Hkv, L, D]
        scores = torch.bmm(q, k.transpose(1, 2))  # [n * Hkv, R * group, L]
        if layer.soft_cap is not None:
            scores = scores.div_(layer.soft_cap).tanh_().mul_(layer.soft_cap)
        scores.view(num_spans, num_kv_heads, num_rows, group, num_slots).add_(tile.bias)
        if layer.sinks is not None:  # one more score in each row, whose weight goes nowhere
            sinks = layer.sinks.view(1, num_kv_heads, 1, group).expand(num_spans, -1, num_rows, -1)
            scores = torch.cat((scores, sinks.reshape(batch, num_rows * group, 1)), dim=-1)
        weights = torch.softmax(scores, dim=-1)[..., :num_slots].to(self._value_dtype)
        v = self._gather_heads(values, tile, self._value_dtype)  # [n * Hkv, L, D]
        result = torch.bmm(weights, v).view(num_spans, num_kv_heads, num_rows, group, head_dim)
        result = result.transpose(1, 2).reshape(num_spans * num_rows, num_kv_heads * group, head_dim)
        if tile.blind is not None:
            result = result.masked_fill(tile.blind[:, None, None], 0.0)
        if tile.real is not None:
            result = result.index_select(0, tile.real)
        out.index_copy_(0, tile.targets, result.to(out.dtype))

    def _gather_heads(self, cache: torch.Tensor, tile: GroupedTile, dtype: torch.dtype) -> torch.Tensor:
        """Copies a tile's slots out of the cache, heads first and in the dtype of the product: [n * Hkv, L, D]."""
        num_spans, _, num_slots = tile.shape
        num_kv_heads, head_dim = cache.shape[1:]
        gathered = cache.index_select(0, tile.slots).view(num_spans, num_slots, num_kv_heads, head_dim)
        heads_first = torch.empty((num_spans, num_kv_heads, num_slots, head_dim), dtype=dtype, device=cache.device)
        return heads_first.copy_(gathered.transpose(1, 2)).view(-1, num_slots, head_dim)

    def _attend_sdpa(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        layer: AttentionLayer,
        tile: SdpaTile,
        out: torch.Tensor,
    ) -> None:
        result = F.scaled_dot_product_attention(
            query[tile.row_begin : tile.row_end].transpose(0, 1)[None],  # [1, Hq, R, D]
            keys.index_select(0, tile.slots).transpose(0, 1)[None],  # [1, Hkv, L, D]
            values.index_select(0, tile.slots).transpose(0, 1)[None],
            attn_mask=tile.visible,
            is_causal=tile.visible is None,
            scale=layer.softmax_scale,
            enable_gqa=True,
        )[0].transpose(0, 1)  # [R, Hq, D]
        if tile.blind is not None:
            result = result.masked_fill(tile.blind[:, None, None], 0.0)
        out[tile.row_begin : tile.row_end] = result


def _product_dtype(context: AttentionContext) -> torch.dtype:
    """Dtype in which weights meet values: bf16 where oneDNN multiplies it (it sums in fp32), else fp32."""
    has_onednn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if context.dtype == torch.bfloat16 and context.device.type == "cpu" and has_onednn:
        return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32
    return torch.float32
