"""Llama 1 to 3, and what is built like it.

Source: Touvron et al., LLaMA (2023) and Llama 2 (2023); Dubey et al., The Llama 3 Herd of Models (2024).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, final

from tokenloom.checkpoint.fields import Fields
from tokenloom.model_config import ModelConfig
from tokenloom.models.architecture import Architecture
from tokenloom.models.causal_lm import CausalLM
from tokenloom.models.config_fields import KeyDefaults, base_config
from tokenloom.models.config_json import base_json, checked_json, shared_rope_json
from tokenloom.models.decoder import Decoder
from tokenloom.models.decoder_layer import PreNormLayer
from tokenloom.models.gguf_layout import GGUFFacts, GGUFLayout, bias_values, mlp_bias_values
from tokenloom.models.layers import LayerFactory
from tokenloom.models.refused_keys import refuse_unknown_arithmetic

__all__ = ["LlamaArchitecture"]


@final
class LlamaArchitecture(Architecture):
    """Pre-norm layers with grouped-query attention, rotary embedding and SwiGLU; biases where the config asks."""

    def read_config(self, fields: Fields, tensor_names: Collection[str]) -> ModelConfig:
        refuse_unknown_arithmetic(fields, "llama", {"attention_bias", "mlp_bias"})
        has_bias = fields.flag("attention_bias", False)
        return replace(
            base_config(fields, "llama", tensor_names, KeyDefaults()),
            qkv_bias=has_bias,
            output_bias=has_bias,
            mlp_bias=fields.flag("mlp_bias", False),
        )

    def make_model(self, config: ModelConfig, factory: LayerFactory, layers: range | None) -> CausalLM:
        return Decoder(config, factory, PreNormLayer, layers)

    def gguf_layout(self) -> GGUFLayout:
        # Mistral's models are stored as llama; only a window tells them apart.
        return GGUFLayout(
            interleaves_rotary_rows=True,
            keys=("attention.sliding_window",),
            config_values=_gguf_values,
            windowed_family="mistral",
        )

    def config_json(self, config: ModelConfig) -> dict[str, Any]:
        values = {
            **base_json(config, "llama", "LlamaForCausalLM"),
            **shared_rope_json(config),
            "attention_bias": config.qkv_bias,
            "mlp_bias": config.mlp_bias,
        }
        return checked_json(self, config, values)


def _gguf_values(facts: GGUFFacts, _values: Mapping[str, Any]) -> Mapping[str, Any]:
    window = facts.integer("attention.sliding_window", 0, minimum=0)
    return {"sliding_window": window} if window > 0 else {**bias_values(facts), **mlp_bias_values(facts)}
