"""Decoder layers, each in two parts that can be run apart.

The residual stream is passed as residual + delta: a part leaves its result to be added by whoever norms next, so that
sum and norm are one operation. Drafters that skip parts, or stop early, call the parts themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import final

import torch

from tokenloom.interfaces.attention import AttentionLayer
from tokenloom.model_config import ModelConfig
from tokenloom.models.attention_part import AttentionPart
from tokenloom.models.causal_lm import ForwardContext
from tokenloom.models.feed_forward import GatedFeedForward
from tokenloom.models.layers import LayerFactory
from tokenloom.models.norms import RmsNorm
from tokenloom.models.rotary_cache import Rotation

__all__ = ["DecoderLayer", "MakeLayer", "PreNormLayer", "SandwichNormLayer"]


class DecoderLayer(ABC):
    """One decoder layer."""

    @property
    @abstractmethod
    def facts(self) -> AttentionLayer:
        """Of its attention; `facts.layer_index` is the layer's number in the model."""

    @abstractmethod
    def attention_part(
        self,
        delta: torch.Tensor | None,
        residual: torch.Tensor,
        rotation: Rotation | None,
        kv: Sequence[torch.Tensor],
        context: ForwardContext,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention over this step's tokens.

        Args:
            delta: [T, H], still to be added to the residual stream; None if there is nothing to add.
            residual: [T, H]; mutated.
            rotation: of this step's positions; None in a layer without rotary embedding.
            kv: this layer's cache tensors; mutated.
            context: of this forward pass.

        Returns:
            (this part's delta, the residual stream without it), each [T, H].
        """

    @abstractmethod
    def ffn_part(self, delta: torch.Tensor | None, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Feed-forward network; arguments and result as in `attention_part`."""


MakeLayer = Callable[[ModelConfig, LayerFactory, int, int], DecoderLayer]
"""Makes one layer: (config, factory, its number, its KV group)."""


@final
class PreNormLayer(DecoderLayer):
    """Each part norms its input: the layer of Llama and of most that followed."""

    def __init__(
        self,
        config: ModelConfig,
        factory: LayerFactory,
        index: int,
        group_id: int,
        *,
        ffn_norm: str = "post_attention_layernorm",
    ) -> None:
        """`ffn_norm`: what checkpoints call the norm before the feed-forward network."""
        name = f"model.layers.{index}"
        self._attention_norm = _norm(f"{name}.input_layernorm", config, factory)
        self._attention = AttentionPart(config, factory, index, group_id, f"{name}.self_attn")
        self._ffn_norm = _norm(f"{name}.{ffn_norm}", config, factory)
        self._ffn = GatedFeedForward(config, factory, f"{name}.mlp")

    @property
    def facts(self) -> AttentionLayer:
        return self._attention.facts

    def attention_part(
        self,
        delta: torch.Tensor | None,
        residual: torch.Tensor,
        rotation: Rotation | None,
        kv: Sequence[torch.Tensor],
        context: ForwardContext,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        normed, residual = self._attention_norm.enter(delta, residual)
        return self._attention(normed, rotation, kv, context), residual

    def ffn_part(self, delta: torch.Tensor | None, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed, residual = self._ffn_norm.enter(delta, residual)
        return self._ffn(normed), residual


@final
class SandwichNormLayer(DecoderLayer):
    """Each part norms its input and its output: the layer of Gemma 2 and 3."""

    def __init__(self, config: ModelConfig, factory: LayerFactory, index: int, group_id: int) -> None:
        name = f"model.layers.{index}"
        self._inner = PreNormLayer(config, factory, index, group_id, ffn_norm="pre_feedforward_layernorm")
        self._after_attention = _norm(f"{name}.post_attention_layernorm", config, factory)
        self._after_ffn = _norm(f"{name}.post_feedforward_layernorm", config, factory)

    @property
    def facts(self) -> AttentionLayer:
        return self._inner.facts

    def attention_part(
        self,
        delta: torch.Tensor | None,
        residual: torch.Tensor,
        rotation: Rotation | None,
        kv: Sequence[torch.Tensor],
        context: ForwardContext,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        delta, residual = self._inner.attention_part(delta, residual, rotation, kv, context)
        return self._after_attention(delta), residual

    def ffn_part(self, delta: torch.Tensor | None, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        delta, residual = self._inner.ffn_part(delta, residual)
        return self._after_ffn(delta), residual


def _norm(name: str, config: ModelConfig, factory: LayerFactory) -> RmsNorm:
    return factory.norm(name, config.hidden_size, config.rms_norm_eps, offset=config.norm_offset)
