"""Mistral: Llama's layers with one attention window for all of them, or none.

Source: Jiang et al., Mistral 7B (2023).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, final

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError
from tokenloom.model_config import ModelConfig
from tokenloom.models.architecture import Architecture
from tokenloom.models.causal_lm import CausalLM
from tokenloom.models.config_fields import KeyDefaults, base_config, read_layer_types, read_window
from tokenloom.models.config_json import base_json, checked_json, shared_rope_json
from tokenloom.models.decoder import Decoder
from tokenloom.models.decoder_layer import PreNormLayer
from tokenloom.models.layers import LayerFactory
from tokenloom.models.refused_keys import refuse_unknown_arithmetic

__all__ = ["MistralArchitecture"]

_DEFAULTS = KeyDefaults(num_kv_heads=8, max_positions=131072)
_DEFAULT_WINDOW = 4096


@final
class MistralArchitecture(Architecture):
    """Pre-norm layers that all see the same window; `sliding_window` null means that they see everything."""

    def read_config(self, fields: Fields, tensor_names: Collection[str]) -> ModelConfig:
        refuse_unknown_arithmetic(fields, "mistral", {"sliding_window"})
        config = base_config(fields, "mistral", tensor_names, _DEFAULTS)
        window = read_window(fields, _DEFAULT_WINDOW)
        expected = "full_attention" if window is None else "sliding_attention"
        if not set(read_layer_types(fields, config.num_layers)) <= {expected}:
            raise ModelError(
                f"{fields.path}: 'layer_types' and 'sliding_window' disagree; in a mistral model every layer is of "
                f"the same type, here {expected}"
            )
        return replace(config, windows=(window,) * config.num_layers)

    def make_model(self, config: ModelConfig, factory: LayerFactory, layers: range | None) -> CausalLM:
        return Decoder(config, factory, PreNormLayer, layers)

    def config_json(self, config: ModelConfig) -> dict[str, Any]:
        values = {
            **base_json(config, "mistral", "MistralForCausalLM"),
            **shared_rope_json(config),
            "sliding_window": config.windows[0],
        }
        return checked_json(self, config, values)
