"""A small random decoder for tests that need real logits: two layers of attention and a feed-forward part, fp32.

Its positions are added to the embeddings, so that nothing but the core's contracts is needed to run it. Greedy output
wanders through the vocabulary, and falls into repetitions now and then, as drafters want it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

import torch

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.interfaces.attention import AttentionLayer
from tokenloom.interfaces.target_layers import LayerParts
from tokenloom.model_config import ModelConfig
from tokenloom.models.causal_lm import FINAL_STATE, CausalLM, ForwardContext, ModelOutput
from tokenloom.models.weight_loading import LoadProgress

__all__ = ["TinyDecoder"]

_NUM_HEADS, _NUM_KV_HEADS, _HEAD_DIM = 4, 2, 8
_HIDDEN = _NUM_HEADS * _HEAD_DIM


@final
class TinyDecoder(CausalLM):
    """Two layers, four query heads on two KV heads.

    Attributes:
        vocab_size: V.
        hidden_size, num_layers, num_heads, num_kv_heads, head_dim: its sizes.
    """

    hidden_size = _HIDDEN
    num_layers = 2
    num_heads = _NUM_HEADS
    num_kv_heads = _NUM_KV_HEADS
    head_dim = _HEAD_DIM

    def __init__(self, vocab_size: int = 64, seed: int = 0, scale: float = 2.0) -> None:
        """`scale` is the standard deviation of the logits: near 0 every token is as likely as any other."""
        self.vocab_size = vocab_size
        generator = torch.Generator().manual_seed(seed)

        def weight(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
            return torch.randn(rows, columns, generator=generator) * (gain / math.sqrt(rows))

        self._embedding = torch.randn(vocab_size, _HIDDEN, generator=generator)
        num_qkv = (_NUM_HEADS + 2 * _NUM_KV_HEADS) * _HEAD_DIM
        self._layers = [
            (weight(_HIDDEN, num_qkv, 1.5), weight(_HIDDEN, _HIDDEN), weight(_HIDDEN, 2 * _HIDDEN), weight(64, _HIDDEN))
            for _ in range(self.num_layers)
        ]
        self._head = weight(_HIDDEN, vocab_size, scale)

    @property
    def config(self) -> ModelConfig:
        raise NotImplementedError("the kit's decoder was read from no checkpoint")

    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        return tuple(AttentionLayer(index, 0, _HEAD_DIM**-0.5) for index in range(self.num_layers))

    def load_weights(self, checkpoint: Checkpoint, progress: LoadProgress) -> None:
        """Has its weights from the start."""

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._embedding[token_ids]

    def forward(self, token_ids: torch.Tensor, context: ForwardContext) -> ModelOutput:
        captured: dict[int, torch.Tensor] = {}
        state = self.embed(token_ids) + 0.5 * _position_codes(context.positions)  # [T, H]
        everything = LayerParts((True,) * self.num_layers, (True,) * self.num_layers)
        parts = everything if context.parts is None else context.parts
        layers = zip(self.attention_layers(), context.kv, self._layers, parts.attention, parts.ffn, strict=False)
        for facts, kv, weights, runs_attention, runs_ffn in layers:
            qkv, output, up, down = weights
            if runs_attention:
                state = state + _attended(_normed(state) @ qkv, kv, facts, context) @ output
            if runs_ffn:
                state = state + torch.tanh(_normed(state) @ up) @ down
            if facts.layer_index in context.capture_layers:
                captured[facts.layer_index] = state
        hidden = _normed(state)
        if FINAL_STATE in context.capture_layers:
            captured[FINAL_STATE] = hidden
        return ModelOutput(hidden, captured)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self._head

    @property
    def num_weight_bytes(self) -> int:
        tensors = [self._embedding, self._head, *(weight for layer in self._layers for weight in layer)]
        return sum(tensor.numel() * tensor.itemsize for tensor in tensors)


def _attended(
    projected: torch.Tensor, kv: Sequence[torch.Tensor], facts: AttentionLayer, context: ForwardContext
) -> torch.Tensor:
    """One layer's attention, heads side by side: [T, H]."""
    heads = projected.view(len(projected), -1, _HEAD_DIM)  # [T, Hq + 2 * Hkv, D]
    query, key, value = heads[:, :_NUM_HEADS], heads[:, _NUM_HEADS:-_NUM_KV_HEADS], heads[:, -_NUM_KV_HEADS:]
    metadata = context.metadata[facts.group_id]
    context.attention.write_kv(kv, key, value, metadata)
    return context.attention.forward(query, kv, facts, metadata).flatten(1)  # [T, Hq, D] before


def _normed(state: torch.Tensor) -> torch.Tensor:
    return state * torch.rsqrt(state.square().mean(dim=-1, keepdim=True) + 1e-5)


def _position_codes(positions: torch.Tensor) -> torch.Tensor:
    """Sines and cosines of several wave lengths: fp32 [T, H]."""
    angles = positions.unsqueeze(1) * torch.logspace(0, -2, _HIDDEN // 2)  # [T, H / 2]
    return torch.cat([angles.sin(), angles.cos()], dim=1)
