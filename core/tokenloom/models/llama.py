"""Llama: pre-norm decoder layers with grouped-query attention, rotary embedding and SwiGLU.

Source: Touvron et al., LLaMA (2023) and Llama 2 (2023); tensor names as in Hugging Face checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import final

import torch

from tokenloom.interfaces.attention import AttentionLayer
from tokenloom.loader.checkpoint_base import Checkpoint
from tokenloom.model_config import ModelConfig
from tokenloom.models.causal_lm import FINAL_STATE, CausalLM, ForwardContext, ModelOutput, assign_groups
from tokenloom.models.layers import LayerFactory
from tokenloom.models.rotary_cache import RotaryCache, Rotation
from tokenloom.models.weight_loading import LoadProgress, load_weights

__all__ = ["LlamaDecoderLayer", "LlamaForCausalLM"]

_LAYER_OF_TENSOR = re.compile(r"model\.layers\.(\d+)\.")


@final
class LlamaForCausalLM(CausalLM):
    """Embedding, the decoder layers `layers` (all by default), final norm and head."""

    def __init__(self, config: ModelConfig, factory: LayerFactory, layers: range | None = None) -> None:
        self._config = config
        self._range = range(config.num_layers) if layers is None else layers
        self._dtype = factory.dtype
        self._rotary = RotaryCache(config.rope, config.max_position_embeddings, factory.device)
        tied, hidden_size = config.tie_word_embeddings, config.hidden_size
        self._embedding = factory.embedding("model.embed_tokens", config.vocab_size, hidden_size, tied=tied)
        groups = assign_groups(config.windows)
        self._decoder = tuple(LlamaDecoderLayer(config, factory, index, groups[index]) for index in self._range)
        self._norm = factory.norm("model.norm", hidden_size, config.rms_norm_eps)
        self._head = (
            self._embedding
            if tied
            else factory.linear("lm_head", hidden_size, {"lm_head": config.vocab_size}, axis="output")
        )
        self._targets = tuple(factory.targets)

    @property
    def config(self) -> ModelConfig:
        return self._config

    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        return tuple(layer.facts for layer in self._decoder)

    def load_weights(self, checkpoint: Checkpoint, progress: LoadProgress) -> None:
        load_weights(self._targets, checkpoint, progress, self._is_outside_range)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._embedding.lookup(token_ids)

    def forward(self, token_ids: torch.Tensor, context: ForwardContext) -> ModelOutput:
        rotation = self._rotary.lookup(context.positions, self._dtype)
        captured: dict[int, torch.Tensor] = {}
        # The residual stream is residual + delta: each norm adds the two, so that sum and norm are one operation.
        residual = self._embedding.lookup(token_ids)  # [T, H]
        delta: torch.Tensor | None = None
        for layer, kv in zip(self._decoder, context.kv, strict=True):
            delta, residual = layer.attention_part(delta, residual, rotation, kv, context)
            delta, residual = layer.ffn_part(delta, residual)
            if layer.index in context.capture_layers:
                captured[layer.index] = residual + delta
        hidden = self._norm(residual) if delta is None else self._norm.add(delta, residual)[0]
        if FINAL_STATE in context.capture_layers:
            captured[FINAL_STATE] = hidden
        return ModelOutput(hidden, captured)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._head.apply(hidden).float()  # [R, V]
        cap = self._config.final_soft_cap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    @property
    def num_weight_bytes(self) -> int:
        return sum(target.num_bytes for target in self._targets)

    def _is_outside_range(self, name: str) -> bool:
        match = _LAYER_OF_TENSOR.match(name)
        if match is None:
            return False
        index = int(match[1])
        return index < self._config.num_layers and index not in self._range


@final
class LlamaDecoderLayer:
    """One decoder layer in two parts, each of which leaves its result to be added by whoever norms next."""

    def __init__(self, config: ModelConfig, factory: LayerFactory, index: int, group_id: int) -> None:
        self.index = index
        self.facts = AttentionLayer(
            layer_index=index,
            group_id=group_id,
            softmax_scale=config.head_dim**-0.5,
            window=config.windows[index],
            soft_cap=config.attn_soft_cap,
        )
        self._ops = factory.ops
        self._head_dim = config.head_dim
        self._num_heads = config.num_heads
        self._num_rotated = config.num_heads + config.num_kv_heads  # queries and keys
        self._num_qkv = self._num_rotated + config.num_kv_heads
        self._make_attention(config, factory, f"model.layers.{index}")
        self._make_ffn(config, factory, f"model.layers.{index}")

    def _make_attention(self, config: ModelConfig, factory: LayerFactory, name: str) -> None:
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        hidden_size, has_bias = config.hidden_size, config.attention_bias
        shards = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
        self._attention_norm = factory.norm(f"{name}.input_layernorm", hidden_size, config.rms_norm_eps)
        self._qkv = factory.linear(f"{name}.self_attn.qkv_proj", hidden_size, shards, has_bias=has_bias, axis="output")
        self._output = factory.linear(
            f"{name}.self_attn.o_proj", q_size, {"o_proj": hidden_size}, has_bias=has_bias, axis="input"
        )

    def _make_ffn(self, config: ModelConfig, factory: LayerFactory, name: str) -> None:
        hidden_size, size, has_bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        shards = {"gate_proj": size, "up_proj": size}
        self._ffn_norm = factory.norm(f"{name}.post_attention_layernorm", hidden_size, config.rms_norm_eps)
        self._gate_up = factory.linear(
            f"{name}.mlp.gate_up_proj", hidden_size, shards, has_bias=has_bias, axis="output"
        )
        self._down = factory.linear(
            f"{name}.mlp.down_proj", size, {"down_proj": hidden_size}, has_bias=has_bias, axis="input"
        )

    def attention_part(
        self,
        delta: torch.Tensor | None,
        residual: torch.Tensor,
        rotation: Rotation,
        kv: Sequence[torch.Tensor],
        context: ForwardContext,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention over this step's tokens.

        Args:
            delta: [T, H], still to be added to the residual stream; None before the first layer.
            residual: [T, H]; mutated.
            rotation: of this step's positions.
            kv: this layer's cache tensors; mutated.
            context: of this forward pass.

        Returns:
            (this part's delta, the residual stream without it), each [T, H].
        """
        if delta is None:
            normed = self._attention_norm(residual)
        else:
            normed, residual = self._attention_norm.add(delta, residual)
        num_tokens, num_heads, num_rotated = residual.shape[0], self._num_heads, self._num_rotated
        heads = self._qkv.apply(normed).view(num_tokens, self._num_qkv, self._head_dim)  # [T, Hq + 2 * Hkv, D]
        rotated = self._ops.rotary(heads[:, :num_rotated], rotation.cos, rotation.signed_sin)  # [T, Hq + Hkv, D]
        metadata = context.metadata[self.facts.group_id]
        context.attention.write_kv(kv, rotated[:, num_heads:], heads[:, num_rotated:], metadata)
        attended = context.attention.forward(rotated[:, :num_heads], kv, self.facts, metadata)  # [T, Hq, D]
        return self._output.apply(attended.flatten(1)), residual

    def ffn_part(self, delta: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Feed-forward network; arguments and result as in `attention_part`."""
        normed, residual = self._ffn_norm.add(delta, residual)
        return self._down.apply(self._ops.silu_and_mul(self._gate_up.apply(normed))), residual
