"""A small attention backend for model tests: one slot after the other, scores and mask written out in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from tokenloom.interfaces.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionLayer,
    AttentionMetadata,
    KVCacheSpec,
)
from tokenloom.model_config import ModelConfig
from tokenloom.models.causal_lm import CausalLM, ForwardContext

__all__ = ["DenseAttention", "Sequences"]


@dataclass(frozen=True, slots=True)
class _Metadata(AttentionMetadata):
    batch: AttentionBatch


@final
class DenseAttention(AttentionBackend):
    """Block size 1, K and V as [slots, Hkv, D]."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype = torch.float32) -> None:
        self._config = config
        self._dtype = dtype

    def kv_cache_spec(self, num_blocks: int) -> KVCacheSpec:
        shape = (num_blocks, self._config.num_kv_heads, self._config.head_dim)
        page_bytes = 2 * self._config.num_kv_heads * self._config.head_dim * self._dtype.itemsize
        return KVCacheSpec((shape, shape), (self._dtype, self._dtype), page_bytes)

    def prepare(self, batch: AttentionBatch) -> AttentionMetadata:
        return _Metadata(batch)

    def write_kv(
        self, kv: Sequence[torch.Tensor], key: torch.Tensor, value: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        assert isinstance(metadata, _Metadata)
        kv[0][metadata.batch.slot_mapping] = key
        kv[1][metadata.batch.slot_mapping] = value

    def forward(
        self, query: torch.Tensor, kv: Sequence[torch.Tensor], layer: AttentionLayer, metadata: AttentionMetadata
    ) -> torch.Tensor:
        assert isinstance(metadata, _Metadata)
        batch = metadata.batch
        output = torch.zeros_like(query)
        for row, seq_len in enumerate(batch.seq_lens_cpu):
            start, stop = int(batch.cu_seqlens_q[row]), int(batch.cu_seqlens_q[row + 1])
            slots = batch.block_table[row, :seq_len].long()
            repeats = query.shape[1] // kv[0].shape[1]
            keys, values = (tensor[slots].repeat_interleave(repeats, 1).float() for tensor in kv)  # [L, Hq, D]
            scores = torch.einsum("qhd,khd->hqk", query[start:stop].float(), keys) * layer.softmax_scale
            if layer.soft_cap is not None:
                scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
            own = torch.arange(seq_len - (stop - start), seq_len).unsqueeze(1)
            distance = own - torch.arange(seq_len)  # [queries, L]
            is_hidden = (distance < 0) | (distance >= (layer.window or seq_len))
            weights = scores.masked_fill(is_hidden, -torch.inf).softmax(-1)
            output[start:stop] = torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype)
        return output

    def copy_slots(self, kv: Sequence[torch.Tensor], source: torch.Tensor, target: torch.Tensor) -> None:
        for tensor in kv:
            tensor[target] = tensor[source].clone()

    def export_blocks(self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(tensor[block_ids].unsqueeze(1) for tensor in kv)

    def import_blocks(
        self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor, content: Sequence[torch.Tensor]
    ) -> None:
        for tensor, blocks in zip(kv, content, strict=True):
            tensor[block_ids] = blocks.squeeze(1)


@final
class Sequences:
    """Runs a model over a few sequences and keeps their KV, so that tests can feed them chunk by chunk."""

    def __init__(
        self,
        model: CausalLM,
        num_sequences: int,
        max_len: int,
        dtype: torch.dtype = torch.float32,
        attention: AttentionBackend | None = None,
    ) -> None:
        self.model = model
        self._max_len = max_len
        self._lens = [0] * num_sequences
        self._attention = attention or DenseAttention(model.config, dtype)
        spec = self._attention.kv_cache_spec(num_sequences * max_len)
        self.kv = [
            [torch.full(shape, torch.nan, dtype=kind) for shape, kind in zip(spec.shapes, spec.dtypes)]
            for _ in model.attention_layers()
        ]

    def context(self, counts: Sequence[int], capture_layers: tuple[int, ...] = ()) -> ForwardContext:
        """The context of a step that feeds `counts[i]` further tokens to sequence i; counts as fed from then on."""
        rows = [row for row, count in enumerate(counts) if count > 0]
        positions = torch.cat(
            [torch.arange(0), *(torch.arange(self._lens[row], self._lens[row] + counts[row]) for row in rows)]
        )
        starts = torch.tensor([0, *(counts[row] for row in rows)]).cumsum(0).int()
        offsets = torch.tensor([row * self._max_len for row in rows for _ in range(counts[row])], dtype=torch.int64)
        for row in rows:
            self._lens[row] += counts[row]
        seq_lens = [self._lens[row] for row in rows]
        table = torch.stack([torch.arange(self._max_len) + row * self._max_len for row in rows] or [torch.zeros(1)])
        windows = {layer.group_id: layer.window for layer in self.model.attention_layers()}
        metadata = tuple(
            self._attention.prepare(
                AttentionBatch(
                    cu_seqlens_q=starts,
                    seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
                    positions=positions,
                    block_table=table.int(),
                    slot_mapping=positions + offsets,
                    tree_mask=None,
                    query_lens_cpu=[counts[row] for row in rows],
                    seq_lens_cpu=seq_lens,
                    window=windows.get(group_id),
                )
            )
            for group_id in range(1 + max(windows, default=0))
        )
        return ForwardContext(positions, self._attention, metadata, self.kv, capture_layers)

    def feed(self, *token_ids: Sequence[int]) -> torch.Tensor:
        """Feeds further tokens of each sequence and returns the logits of all of them, [T, V]."""
        flat = torch.tensor([token for ids in token_ids for token in ids], dtype=torch.int64)
        output = self.model.forward(flat, self.context([len(ids) for ids in token_ids]))
        return self.model.compute_logits(output.hidden)

    def greedy(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """Continues `prompt` in sequence 0."""
        token_ids = [int(self.feed(prompt)[-1].argmax())]
        while len(token_ids) < num_tokens:
            token_ids.append(int(self.feed(token_ids[-1:])[-1].argmax()))
        return token_ids
