"""Qwen 3: Qwen 2's layers with normed queries and keys instead of biases.

Source: Yang et al., Qwen3 Technical Report (2025).
"""

from __future__ import annotations

from collections.abc import Collection
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
from tokenloom.models.gguf_layout import LLAMA_LAYER_NAMES, GGUFLayout, bias_values
from tokenloom.models.layers import LayerFactory
from tokenloom.models.refused_keys import refuse_unknown_arithmetic
from tokenloom.models.window_layers import SWITCHED_WINDOW_KEYS, read_switched_windows, switched_windows_json

__all__ = ["Qwen3Architecture"]

_DEFAULTS = KeyDefaults(num_kv_heads=32, head_dim=128, max_positions=32768)

_GGUF_NAMES = {**LLAMA_LAYER_NAMES, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}


@final
class Qwen3Architecture(Architecture):
    """Pre-norm layers; those from `max_window_layers` on have the window, once it is switched on."""

    def read_config(self, fields: Fields, tensor_names: Collection[str]) -> ModelConfig:
        refuse_unknown_arithmetic(fields, "qwen3", SWITCHED_WINDOW_KEYS | {"attention_bias"})
        config = base_config(fields, "qwen3", tensor_names, _DEFAULTS)
        first = fields.integer("max_window_layers", 28, minimum=0)
        has_bias = fields.flag("attention_bias", False)
        return replace(
            config,
            has_qk_norm=True,
            qkv_bias=has_bias,
            output_bias=has_bias,
            windows=read_switched_windows(fields, config.num_layers, 4096, lambda index: index >= first),
        )

    def make_model(self, config: ModelConfig, factory: LayerFactory, layers: range | None) -> CausalLM:
        return Decoder(config, factory, PreNormLayer, layers)

    def gguf_layout(self) -> GGUFLayout:
        return GGUFLayout(layer_names=_GGUF_NAMES, config_values=lambda facts, _: bias_values(facts))

    def config_json(self, config: ModelConfig) -> dict[str, Any]:
        values = {
            **base_json(config, "qwen3", "Qwen3ForCausalLM"),
            **shared_rope_json(config),
            **switched_windows_json(config),
            "attention_bias": config.qkv_bias,
        }
        return checked_json(self, config, values)
