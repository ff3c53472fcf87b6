"""Attention over one whole sequence at a time, which is all that a calibration text needs: no cache, no blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, final

import torch
from torch.nn import functional

from tokenloom.interfaces.attention import (
    AttentionBackend,
    AttentionBatch,
    AttentionLayer,
    AttentionMetadata,
    KVCacheSpec,
)

__all__ = ["CalibrationAttention", "NoMetadata"]


@final
class NoMetadata(AttentionMetadata):
    """There is nothing to know: every call is one sequence from its beginning."""


@final
class CalibrationAttention(AttentionBackend):
    """Causal attention over the keys and values that were written last.

    Attributes:
        is_idle: gives queries back instead of attending, where nobody looks at the result.
    """

    def __init__(self) -> None:
        self.is_idle = False
        self._written: tuple[torch.Tensor, torch.Tensor] | None = None

    def write_kv(
        self, kv: Sequence[torch.Tensor], key: torch.Tensor, value: torch.Tensor, metadata: AttentionMetadata
    ) -> None:
        self._written = (key, value)

    def forward(
        self, query: torch.Tensor, kv: Sequence[torch.Tensor], layer: AttentionLayer, metadata: AttentionMetadata
    ) -> torch.Tensor:
        if self.is_idle:
            return query
        assert self._written is not None, "attention before anything was written"
        q, k, v = (each.transpose(0, 1).unsqueeze(0) for each in (query, *self._written))  # [1, heads, T, D]
        if layer.soft_cap is not None or (layer.window is not None and layer.window < query.shape[0]):
            attended = _masked(q, k, v, layer)
        else:
            attended = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=layer.softmax_scale, enable_gqa=True
            )
        return attended.squeeze(0).transpose(0, 1).contiguous()

    def kv_cache_spec(self, num_blocks: int) -> KVCacheSpec:
        _refuse()

    def prepare(self, batch: AttentionBatch) -> AttentionMetadata:
        return NoMetadata()

    def copy_slots(self, kv: Sequence[torch.Tensor], source: torch.Tensor, target: torch.Tensor) -> None:
        _refuse()

    def export_blocks(self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        _refuse()

    def import_blocks(
        self, kv: Sequence[torch.Tensor], block_ids: torch.Tensor, content: Sequence[torch.Tensor]
    ) -> None:
        _refuse()


def _masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: AttentionLayer) -> torch.Tensor:
    """With a window or a soft cap: head by head, so that one matrix of scores is held at a time."""
    length, heads = q.shape[2], []
    distance = torch.arange(length).unsqueeze(1) - torch.arange(length)  # [T, T]
    is_hidden = (distance < 0) | (distance >= (layer.window or length))
    for head in range(q.shape[1]):
        shared = head * k.shape[1] // q.shape[1]
        scores = (q[0, head].float() @ k[0, shared].float().T) * layer.softmax_scale
        if layer.soft_cap is not None:
            scores = scores.div_(layer.soft_cap).tanh_().mul_(layer.soft_cap)
        heads.append(scores.masked_fill_(is_hidden, -torch.inf).softmax(-1).to(v.dtype) @ v[0, shared])
    return torch.stack(heads).unsqueeze(0)


def _refuse() -> NoReturn:
    raise AssertionError("a calibration text is run without a KV cache")
