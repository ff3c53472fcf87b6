"""The attention plugin `triton_paged`: a paged KV cache, and Triton kernels for every kind of step.

README.md has the maths, the layout and what a step reads and writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

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
from tokenloom.ops.triton_card import card_of
from tokenloom.settings_base import UserPath
from tokenloom_attention.fixed_scales import KV_SCALES_DESCRIPTION, round_by_scale, scale_source
from tokenloom_attention.triton_paged.launches import pack_tree, padded_dim
from tokenloom_attention.triton_paged.plan import StepPlan, Work, plan_step
from tokenloom_attention.triton_paged.step_launches import StepLaunches
from tokenloom_attention.triton_paged.tuning import Tiles, tuning_for
from tokenloom_attention.triton_paged.validity import reasons_against

__all__ = ["TritonPagedBackend", "TritonPagedConfig", "TritonPagedMetadata"]

STORED = {"int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn}


@final
class TritonPagedConfig(AttentionConfig):
    """Settings of `triton_paged`."""

    kv_dtype: Literal["auto", "int8", "fp8_e4m3"] = Field(
        default="auto",
        description="What keys and values are stored as: auto takes the model's dtype; int8 and fp8_e4m3 halve the "
        "memory of 16 bits, with scales per token and head or fixed ones, and are lossy.",
    )
    kv_scales: UserPath = Field(default="token_head", description=KV_SCALES_DESCRIPTION)

    def fixed_kv_scales(self) -> KVScaleSource | None:
        """See `AttentionConfig.fixed_kv_scales`. Raises ConfigError if scales are named, but nothing is rounded."""
        return scale_source("triton_paged", self.kv_scales, self.kv_dtype)

    def build(self, context: AttentionContext) -> TritonPagedBackend:
        """Constructs the backend; kernels are compiled when they are first launched.

        Raises:
            CapabilityError: if the context asks for what the backend cannot do; holds every reason.
        """
        self.fixed_kv_scales()
        if reasons := reasons_against("triton_paged", context, self.kv_dtype):
            raise CapabilityError(reasons)
        return TritonPagedBackend(context, self)


@final
@dataclass(frozen=True, slots=True)
class TritonPagedMetadata(AttentionMetadata):
    """One step's work.

    Attributes:
        batch: the step.
        plan: how it is laid over the device.
        launches: what its layers launch.
    """

    batch: AttentionBatch
    plan: StepPlan
    launches: StepLaunches


@final
class TritonPagedBackend(AttentionBackend):
    """Keys and values in one tensor [num_blocks, 2, Hkv, BS, D]; quantized ones have fp32 scales in a second one."""

    def __init__(self, context: AttentionContext, config: TritonPagedConfig) -> None:
        self._context = context
        self._stored = STORED.get(config.kv_dtype, context.dtype)
        card = card_of(context.device)
        self._work = Work(
            group=context.num_heads // context.num_kv_heads,
            num_kv_heads=context.num_kv_heads,
            head_dim=context.head_dim,
            num_processors=card.num_processors,
            deterministic=context.deterministic,
        )
        self._tuning = tuning_for(card.name, context.head_dim, context.dtype)

    def kv_cache_spec(self, num_blocks: int) -> KVCacheSpec:
        """[num_blocks, 2, Hkv, BS, D] of what is stored, and with a quantized cache fp32 [num_blocks, 2, Hkv, BS]."""
        context = self._context
        page = (2, context.num_kv_heads, context.block_size)
        page_bytes = 2 * context.num_kv_heads * context.block_size * context.head_dim * self._stored.itemsize
        shapes: list[tuple[int, ...]] = [(num_blocks, *page, context.head_dim)]
        dtypes = [self._stored]
        if self._stored != context.dtype:
            shapes.append((num_blocks, *page))
            dtypes.append(torch.float32)
            page_bytes += 2 * context.num_kv_heads * context.block_size * 4
        return KVCacheSpec(tuple(shapes), tuple(dtypes), page_bytes)

    def prepare(self, batch: AttentionBatch) -> TritonPagedMetadata:
        """Chooses the launch from the host's counts."""
        return self._prepare(batch, skip_fresh=False)

    def prepare_without_fresh(self, batch: AttentionBatch) -> TritonPagedMetadata:
        """As `prepare`, but `forward` is to leave requests alone that have nothing cached; for `triton_flash`."""
        return self._prepare(batch, skip_fresh=True)

    def tiles_of_prompts(self) -> Tiles:
        """Tiles for contiguous keys and values; for `triton_flash`."""
        return replace(self._tuning.whole, rows=max(self._tuning.whole.rows, padded_dim(self._work.group)))

    def _prepare(self, batch: AttentionBatch, *, skip_fresh: bool) -> TritonPagedMetadata:
        query_lens, seq_lens = batch.query_lens_cpu, batch.seq_lens_cpu
        assert sum(query_lens) == batch.num_tokens, f"{query_lens} against {batch.num_tokens} rows"
        plan = plan_step(query_lens, seq_lens, batch.window, self._work, self._tuning, skip_fresh=skip_fresh)
        tree_words = None if batch.tree_mask is None else pack_tree(batch.tree_mask)
        return TritonPagedMetadata(batch, plan, StepLaunches(batch, tree_words, plan))

    def write_kv(
        self, kv: Sequence[torch.Tensor], key: torch.Tensor, value: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        """Stores the new tokens, quantized if the cache is; see `AttentionBackend.write_kv`."""
        assert isinstance(metadata, TritonPagedMetadata), f"metadata of another backend: {type(metadata).__name__}"
        metadata.launches.store(kv[0], _scales(kv), key, value)

    def write_scaled_kv(
        self,
        kv: Sequence[torch.Tensor],
        key: torch.Tensor,
        value: torch.Tensor,
        scales: KVScales,
        metadata: AttentionMetadata,
    ) -> None:
        """Stores the new tokens with fixed scales, which lie beside each token as found ones do."""
        assert isinstance(metadata, TritonPagedMetadata), f"metadata of another backend: {type(metadata).__name__}"
        slots, size = metadata.batch.slot_mapping.clamp(min=0), self._context.block_size  # not stored: the null block
        blocks, offsets = slots // size, slots % size
        for which, values, scale in ((0, key, scales.key), (1, value, scales.value)):
            codes = round_by_scale(values, scale, self._stored)  # [T, Hkv, D]
            _as_bits(kv[0])[blocks, which, :, offsets] = _as_bits(codes)
            kv[1][blocks, which, :, offsets] = scale

    def forward(
        self, query: torch.Tensor, kv: Sequence[torch.Tensor], layer: AttentionLayer, metadata: AttentionMetadata
    ) -> torch.Tensor:
        """One launch for all requests, and a second one where sequences are split; see `AttentionBackend.forward`."""
        assert isinstance(metadata, TritonPagedMetadata), f"metadata of another backend: {type(metadata).__name__}"
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        metadata.launches.attend(out, query, kv[0], _scales(kv), layer)
        return out

    def copy_slots(self, kv: Sequence[torch.Tensor], source: torch.Tensor, target: torch.Tensor) -> None:
        """Reads all of `source`, then writes `target`; see `AttentionBackend.copy_slots`."""
        size = self._context.block_size
        for part in map(_as_bits, kv):
            part[target // size, :, :, target % size] = part[source // size, :, :, source % size]

    def export_blocks(self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(K, V), each [n, BS, Hkv, D], and with a quantized cache their scales [n, BS, Hkv]."""
        content: list[torch.Tensor] = []
        for part in kv:
            blocks = _as_bits(part).index_select(0, block_ids).transpose(2, 3)  # [n, 2, BS, Hkv, ...]
            content += [blocks[:, which].clone(memory_format=torch.contiguous_format) for which in (0, 1)]
        stored = self._stored
        return tuple(part.view(stored) if part.dtype == torch.uint8 else part for part in content)

    def import_blocks(
        self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor, content: Sequence[torch.Tensor]
    ) -> None:
        """Writes what `export_blocks` returned; see `AttentionBackend.import_blocks`."""
        for index, part in enumerate(kv):
            blocks = torch.stack([_as_bits(both) for both in content[2 * index : 2 * index + 2]], dim=1)
            _as_bits(part).index_copy_(0, block_ids, blocks.transpose(2, 3).contiguous())


def _scales(kv: Sequence[torch.Tensor]) -> torch.Tensor | None:
    return kv[1] if len(kv) == 2 else None


def _as_bits(part: torch.Tensor) -> torch.Tensor:
    """Bytes of what PyTorch cannot index on every device."""
    return part.view(torch.uint8) if part.dtype == torch.float8_e4m3fn else part
