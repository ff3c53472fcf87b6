"""The decoder that all built-in families share: embedding, a stack of layers, final norm, head, soft cap."""

from __future__ import annotations

import re
from typing import final

import torch

from tokenloom.checkpoint.base import Checkpoint
from tokenloom.interfaces.attention import AttentionLayer
from tokenloom.interfaces.target_layers import LayerParts
from tokenloom.model_config import ModelConfig
from tokenloom.models.causal_lm import FINAL_STATE, CausalLM, ForwardContext, ModelOutput, assign_groups
from tokenloom.models.decoder_layer import DecoderLayer, MakeLayer
from tokenloom.models.layers import LayerFactory
from tokenloom.models.rotary_cache import Rotation, RotationTables
from tokenloom.models.weight_loading import LoadProgress, load_weights

__all__ = ["Decoder"]

_LAYER_OF_TENSOR = re.compile(r"model\.layers\.(\d+)\.")


@final
class Decoder(CausalLM):
    """A model whose layers all follow each other on one residual stream.

    Args:
        config: of the whole model.
        factory: makes the layers; its `max_model_len` sizes the rotary tables.
        make_layer: makes one decoder layer, usually a `DecoderLayer` class.
        layers: only these decoder layers; None for all.
    """

    def __init__(
        self, config: ModelConfig, factory: LayerFactory, make_layer: MakeLayer, layers: range | None = None
    ) -> None:
        self._config = config
        self._range = range(config.num_layers) if layers is None else layers
        ropes = [config.ropes[index] for index in self._range]
        max_len = factory.max_model_len or config.max_position_embeddings
        self._tables = RotationTables(ropes, max_len, factory.dtype, factory.device)
        tied, hidden_size = config.tie_word_embeddings, config.hidden_size
        self._embedding = factory.embedding("model.embed_tokens", config.vocab_size, hidden_size, tied=tied)
        # Rounded to the activation dtype before it is used, as the model was trained.
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=factory.dtype).item()
        groups = assign_groups(config.windows)
        self._layers = tuple(make_layer(config, factory, index, groups[index]) for index in self._range)
        self._norm = factory.norm("model.norm", hidden_size, config.rms_norm_eps, offset=config.norm_offset)
        self._head = (
            self._embedding
            if tied
            else factory.linear("lm_head", hidden_size, {"lm_head": config.vocab_size}, axis="output")
        )
        self._targets = tuple(factory.targets)

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def layers(self) -> tuple[DecoderLayer, ...]:
        """The loaded layers, first to last."""
        return self._layers

    def attention_layers(self) -> tuple[AttentionLayer, ...]:
        return tuple(layer.facts for layer in self._layers)

    def load_weights(self, checkpoint: Checkpoint, progress: LoadProgress) -> None:
        load_weights(self._targets, checkpoint, progress, self._is_outside_range)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        embedded = self._embedding.lookup(token_ids)  # [n, H]
        return embedded if self._embedding_scale == 1.0 else embedded * self._embedding_scale

    def rotations(self, positions: torch.Tensor) -> tuple[Rotation | None, ...]:
        """What each loaded layer's `attention_part` takes, for tokens at `positions`: int64 [T]."""
        return self._tables.lookup(positions)

    def final_state(self, delta: torch.Tensor | None, residual: torch.Tensor) -> torch.Tensor:
        """What `compute_logits` takes, from what the last layer that ran has left: [T, H] each."""
        return self._norm.enter(delta, residual)[0]

    def forward(self, token_ids: torch.Tensor, context: ForwardContext) -> ModelOutput:
        if context.parts is not None:
            return ModelOutput(self._run_parts(token_ids, context, context.parts))
        rotations, capture_layers = self.rotations(context.positions), context.capture_layers
        captured: dict[int, torch.Tensor] = {}
        residual = self.embed(token_ids)  # [T, H]
        delta: torch.Tensor | None = None
        for index, layer, rotation, kv in zip(self._range, self._layers, rotations, context.kv, strict=True):
            delta, residual = layer.attention_part(delta, residual, rotation, kv, context)
            delta, residual = layer.ffn_part(delta, residual)
            if index in capture_layers:
                captured[index] = residual + delta
        hidden = self.final_state(delta, residual)
        if FINAL_STATE in capture_layers:
            captured[FINAL_STATE] = hidden
        return ModelOutput(hidden, captured)

    def _run_parts(self, token_ids: torch.Tensor, context: ForwardContext, parts: LayerParts) -> torch.Tensor:
        """The final normed state [T, H] after some parts of the layers."""
        residual = self.embed(token_ids)  # [T, H]
        delta: torch.Tensor | None = None
        rotations = self.rotations(context.positions)
        layers = zip(self._layers, rotations, context.kv, parts.attention, parts.ffn, strict=False)
        for layer, rotation, kv, runs_attention, runs_ffn in layers:
            if runs_attention:
                delta, residual = layer.attention_part(delta, residual, rotation, kv, context)
            if runs_ffn:
                delta, residual = layer.ffn_part(delta, residual)
        return self.final_state(delta, residual)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self._head.apply_float32(hidden)  # [R, V]
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
