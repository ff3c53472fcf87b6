"""The attention plugin `native_cpu`: paged KV cache and attention in C++, for prompts, chunks, decode and verification.

The arithmetic is in csrc/; README.md has the maths, the layout and the measurements behind the choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
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
    KVScales,
    KVScaleSource,
)
from tokenloom.settings_base import UserPath
from tokenloom_attention.fixed_scales import KV_SCALES_DESCRIPTION, round_by_scale, scale_source
from tokenloom_attention.native_cpu.kernels import load_kernels

__all__ = ["NativeCpuBackend", "NativeCpuConfig", "NativeCpuMetadata"]

_COLUMNS = 16
"""Rows of values are padded to whole vectors, the widest ones of any CPU."""
_KEY_TILE = 16
"""Keys that lie together where blocks hold a multiple of so many: kKeyTile of attention.h."""

_MAX_INT8_HEAD_DIM = 512


@final
class NativeCpuConfig(AttentionConfig):
    """Settings of `native_cpu`."""

    kv_dtype: Literal["auto", "int8"] = Field(
        default="auto",
        description="What keys and values are stored as: auto takes the model's dtype; int8 halves the memory of "
        "bfloat16, with scales per token and head or fixed ones, and is lossy.",
    )
    kv_scales: UserPath = Field(default="token_head", description=KV_SCALES_DESCRIPTION)

    def fixed_kv_scales(self) -> KVScaleSource | None:
        """See `AttentionConfig.fixed_kv_scales`. Raises ConfigError if scales are named, but nothing is rounded."""
        return scale_source("native_cpu", self.kv_scales, self.kv_dtype)

    def build(self, context: AttentionContext) -> NativeCpuBackend:
        """Constructs the backend; compiles its kernels where that has not been done yet.

        Raises:
            CapabilityError: if the context asks for what the backend cannot do; holds every reason.
            NativeBuildError: the kernels cannot be compiled here.
        """
        self.fixed_kv_scales()
        if reasons := list(_reasons_against(context, self.kv_dtype)):
            raise CapabilityError(reasons)
        return NativeCpuBackend(context, self)


@final
@dataclass(frozen=True, slots=True)
class NativeCpuMetadata(AttentionMetadata):
    """One step's work.

    Attributes:
        work: the C++ object, which holds the batch's tensors and the cut into items.
        window: that the cut was made for.
        slot_mapping: the batch's.
    """

    work: Any
    window: int | None
    slot_mapping: torch.Tensor


@final
class NativeCpuBackend(AttentionBackend):
    """Keys and values in 32-bit words, one tensor each; int8 adds a tensor of scales for each."""

    def __init__(self, context: AttentionContext, config: NativeCpuConfig) -> None:
        self._context = context
        self._stored = torch.int8 if config.kv_dtype == "int8" else context.dtype
        self._pack = 4 // self._stored.itemsize
        self._tile = _KEY_TILE if context.block_size % _KEY_TILE == 0 else context.block_size
        self._padded_dim = -(-context.head_dim // _COLUMNS) * _COLUMNS
        self._native = load_kernels().Backend(
            context.num_heads,
            context.num_kv_heads,
            context.head_dim,
            self._padded_dim,
            context.block_size,
            self._pack,
            context.dtype == torch.bfloat16,
            context.deterministic,
        )

    def kv_cache_spec(self, num_blocks: int) -> KVCacheSpec:
        """Keys [n, Hkv, BS / t, D / p, t, p] and values [n, Hkv, ceil(BS / p), padded D, p], p elements to a word and t
        keys to a tile; with int8 their scales [n, Hkv, BS] follow."""
        context, pack = self._context, self._pack
        num_tiles = context.block_size // self._tile
        keys = (context.num_kv_heads, num_tiles, context.head_dim // pack, self._tile, pack)
        values = (context.num_kv_heads, -(-context.block_size // pack), self._padded_dim, pack)
        shapes: list[tuple[int, ...]] = [keys, values]
        dtypes = [self._stored, self._stored]
        if self._stored == torch.int8:
            shapes += [(context.num_kv_heads, context.block_size)] * 2
            dtypes += [torch.float32] * 2
        sizes = [torch.Size(shape).numel() * dtype.itemsize for shape, dtype in zip(shapes, dtypes)]
        return KVCacheSpec(tuple((num_blocks, *shape) for shape in shapes), tuple(dtypes), sum(sizes))

    def prepare(self, batch: AttentionBatch) -> NativeCpuMetadata:
        """Cuts the step into items of work."""
        work = self._native.prepare(
            batch.cu_seqlens_q,
            batch.seq_lens,
            batch.positions,
            batch.block_table,
            batch.slot_mapping,
            batch.tree_mask,
            batch.window,
        )
        return NativeCpuMetadata(work, batch.window, batch.slot_mapping)

    def write_kv(
        self, kv: Sequence[torch.Tensor], key: torch.Tensor, value: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        """Stores one token after the other, quantized if int8 is stored; see `AttentionBackend.write_kv`."""
        assert isinstance(metadata, NativeCpuMetadata), f"metadata of another backend: {type(metadata).__name__}"
        assert key.dtype == value.dtype == self._context.dtype, f"{key.dtype}, {value.dtype}: not {self._context.dtype}"
        metadata.work.write_kv(kv, key, value)

    def write_scaled_kv(
        self,
        kv: Sequence[torch.Tensor],
        key: torch.Tensor,
        value: torch.Tensor,
        scales: KVScales,
        metadata: AttentionMetadata,
    ) -> None:
        """Stores the new tokens with fixed scales, which lie beside each token as found ones do."""
        assert isinstance(metadata, NativeCpuMetadata), f"metadata of another backend: {type(metadata).__name__}"
        size, pack = self._context.block_size, self._pack
        slots = metadata.slot_mapping.clamp(min=0)  # what is not to be stored goes to the null block
        blocks, offsets = slots // size, slots % size
        keys = round_by_scale(key, scales.key, self._stored)  # [T, Hkv, D]
        kv[0][blocks, :, offsets // self._tile, :, offsets % self._tile] = keys.view(*keys.shape[:2], -1, pack)
        values = round_by_scale(value, scales.value, self._stored)
        kv[1][blocks, :, offsets // pack, : self._context.head_dim, offsets % pack] = values
        kv[2][blocks, :, offsets] = scales.key
        kv[3][blocks, :, offsets] = scales.value

    def forward(
        self, query: torch.Tensor, kv: Sequence[torch.Tensor], layer: AttentionLayer, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """Runs the step's items on all threads; see `AttentionBackend.forward`."""
        assert isinstance(metadata, NativeCpuMetadata), f"metadata of another backend: {type(metadata).__name__}"
        assert layer.window == metadata.window, f"window {layer.window} in a group prepared for {metadata.window}"
        assert query.dtype == self._context.dtype, f"queries of {query.dtype}, not {self._context.dtype}"
        assert layer.sinks is None, "sinks for a backend that does not claim the flag"
        out: torch.Tensor = metadata.work.forward(query, kv, layer.softmax_scale, layer.soft_cap or 0.0)
        return out

    def copy_slots(self, kv: Sequence[torch.Tensor], source: torch.Tensor, target: torch.Tensor) -> None:
        """Reads all of `source`, then writes `target`; see `AttentionBackend.copy_slots`."""
        self._native.copy_slots(kv, source, target)

    def export_blocks(self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(K, V) and with int8 their scales, unpacked to [n, BS, Hkv, ...]."""
        context, num_blocks = self._context, block_ids.shape[0]
        keys, values, *scales = (part.index_select(0, block_ids) for part in kv)
        shape = (num_blocks, context.block_size, context.num_kv_heads, context.head_dim)
        keys = keys.permute(0, 2, 4, 1, 3, 5).reshape(shape).contiguous()
        num_slots = self._pack * values.shape[2]
        rows = values.permute(0, 2, 4, 1, 3).reshape(num_blocks, num_slots, context.num_kv_heads, self._padded_dim)
        values = rows[:, : context.block_size, :, : context.head_dim].contiguous()
        return (keys, values, *(part.transpose(1, 2).clone(memory_format=torch.contiguous_format) for part in scales))

    def import_blocks(
        self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor, content: Sequence[torch.Tensor]
    ) -> None:
        """Packs what `export_blocks` unpacked; see `AttentionBackend.import_blocks`."""
        context, pack, num_blocks = self._context, self._pack, block_ids.shape[0]
        keys, values, *scales = content
        _, num_tiles, num_words, tile, _ = kv[0].shape[1:]
        tiles = keys.view(num_blocks, num_tiles, tile, context.num_kv_heads, num_words, pack)
        words = tiles.permute(0, 3, 1, 4, 2, 5)  # [n, Hkv, BS / t, D / p, t, p]
        kv[0].index_copy_(0, block_ids, words.contiguous())
        rows = values.new_zeros(
            (num_blocks, kv[1].shape[2] * pack, context.num_kv_heads, self._padded_dim)
        )  # [n, BS padded to words, Hkv, D padded]
        rows[:, : context.block_size, :, : context.head_dim] = values
        words = rows.view(num_blocks, kv[1].shape[2], pack, *rows.shape[2:]).permute(
            0, 3, 1, 4, 2
        )  # [n, Hkv, ceil(BS / p), D padded, p]
        kv[1].index_copy_(0, block_ids, words.contiguous())
        for part, exported in zip(kv[2:], scales, strict=True):
            part.index_copy_(0, block_ids, exported.transpose(1, 2).contiguous())


def _reasons_against(context: AttentionContext, kv_dtype: str) -> list[str]:
    reasons = []
    if context.device.type != "cpu":
        reasons.append(f"attention=native_cpu runs on cpu only, got {context.device}; try attention=torch_sdpa")
    if context.num_heads % context.num_kv_heads:
        reasons.append(
            f"attention=native_cpu needs num_heads to be a multiple of num_kv_heads, got {context.num_heads} and "
            f"{context.num_kv_heads}; check the model's config"
        )
    if context.dtype not in (torch.float32, torch.bfloat16):
        reasons.append(
            f"attention=native_cpu needs a dtype in (float32, bfloat16), got {context.dtype}; "
            "try model.dtype=bfloat16 or attention=torch_sdpa"
        )
    elif context.dtype == torch.bfloat16 and context.head_dim % 2:
        reasons.append(
            f"attention=native_cpu needs an even head_dim in bfloat16, got {context.head_dim}; try attention=torch_sdpa"
        )
    if kv_dtype == "int8" and (context.head_dim % 4 or context.head_dim > _MAX_INT8_HEAD_DIM):
        reasons.append(
            f"attention.kv_dtype=int8 needs head_dim to be a multiple of 4 up to {_MAX_INT8_HEAD_DIM}, got "
            f"{context.head_dim}; try attention.kv_dtype=auto"
        )
    return reasons
