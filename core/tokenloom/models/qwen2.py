"""Qwen 2 and 2.5: Llama's layers with biases on queries, keys and values, and a window in the upper layers if asked.

Source: Yang et al., Qwen2 Technical Report (2024).
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
from tokenloom.models.gguf_layout import GGUFLayout
from tokenloom.models.layers import LayerFactory
from tokenloom.models.refused_keys import refuse_unknown_arithmetic
from tokenloom.models.window_layers import SWITCHED_WINDOW_KEYS, read_switched_windows, switched_windows_json

__all__ = ["Qwen2Architecture"]

_DEFAULTS = KeyDefaults(num_kv_heads=32, max_positions=32768)


@final
class Qwen2Architecture(Architecture):
    """Pre-norm layers; those from `max_window_layers` on have the window, once it is switched on."""

    def read_config(self, fields: Fields, tensor_names: Collection[str]) -> ModelConfig:
        refuse_unknown_arithmetic(fields, "qwen2", SWITCHED_WINDOW_KEYS)
        config = base_config(fields, "qwen2", tensor_names, _DEFAULTS)
        first = fields.integer("max_window_layers", 28, minimum=0)
        windows = read_switched_windows(fields, config.num_layers, 4096, lambda index: index >= first)
        return replace(config, qkv_bias=True, windows=windows)

    def make_model(self, config: ModelConfig, factory: LayerFactory, layers: range | None) -> CausalLM:
        return Decoder(config, factory, PreNormLayer, layers)

    def gguf_layout(self) -> GGUFLayout:
        return GGUFLayout()

    def config_json(self, config: ModelConfig) -> dict[str, Any]:
        values = {
            **base_json(config, "qwen2", "Qwen2ForCausalLM"),
            **shared_rope_json(config),
            **switched_windows_json(config),
        }
        return checked_json(self, config, values)
