"""SmolLM3: Llama's layers, some of them without rotary embedding (NoPE); these may have a window.

Source: Bakouch et al., SmolLM3 (2025); Yang et al., RoPE to NoPE and Back Again (2025).
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
from tokenloom.models.config_fields import KeyDefaults, base_config
from tokenloom.models.config_json import base_json, checked_json, shared_rope_json
from tokenloom.models.decoder import Decoder
from tokenloom.models.decoder_layer import PreNormLayer
from tokenloom.models.gguf_layout import GGUFLayout, bias_values, mlp_bias_values
from tokenloom.models.layers import LayerFactory
from tokenloom.models.refused_keys import refuse_unknown_arithmetic
from tokenloom.models.window_layers import SWITCHED_WINDOW_KEYS, read_switched_windows, switched_windows_json

__all__ = ["SmolLM3Architecture"]

_DEFAULTS = KeyDefaults(num_kv_heads=4, max_positions=32768, rope_theta=2e6, tie_word_embeddings=True)
_KNOWN_KEYS = SWITCHED_WINDOW_KEYS | {"attention_bias", "mlp_bias", "no_rope_layers", "no_rope_layer_interval"}


@final
class SmolLM3Architecture(Architecture):
    """Pre-norm layers; `no_rope_layers` holds 0 for each layer without rotary embedding, by default every fourth."""

    def read_config(self, fields: Fields, tensor_names: Collection[str]) -> ModelConfig:
        refuse_unknown_arithmetic(fields, "smollm3", _KNOWN_KEYS)
        config = base_config(fields, "smollm3", tensor_names, _DEFAULTS)
        has_rope = _layers_with_rope(fields, config.num_layers)
        has_bias = fields.flag("attention_bias", False)
        return replace(
            config,
            ropes=tuple(rope if has else None for rope, has in zip(config.ropes, has_rope)),
            windows=read_switched_windows(fields, config.num_layers, None, lambda index: not has_rope[index]),
            qkv_bias=has_bias,
            output_bias=has_bias,
            mlp_bias=fields.flag("mlp_bias", False),
        )

    def make_model(self, config: ModelConfig, factory: LayerFactory, layers: range | None) -> CausalLM:
        return Decoder(config, factory, PreNormLayer, layers)

    def gguf_layout(self) -> GGUFLayout:
        # No key says which layers have no rope: every fourth has none, as `read_config` assumes too.
        return GGUFLayout(
            interleaves_rotary_rows=True,
            config_values=lambda facts, _: {**bias_values(facts), **mlp_bias_values(facts)},
        )

    def config_json(self, config: ModelConfig) -> dict[str, Any]:
        values = {
            **base_json(config, "smollm3", "SmolLM3ForCausalLM"),
            **shared_rope_json(config),
            **switched_windows_json(config),
            "no_rope_layers": [int(rope is not None) for rope in config.ropes],
            "attention_bias": config.qkv_bias,
            "mlp_bias": config.mlp_bias,
        }
        return checked_json(self, config, values)


def _layers_with_rope(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    if not fields.has("no_rope_layers"):
        interval = fields.integer("no_rope_layer_interval", 4)
        return tuple((index + 1) % interval != 0 for index in range(num_layers))
    flags = fields.numbers("no_rope_layers")
    if len(flags) < num_layers or not set(flags) <= {0.0, 1.0}:
        raise ModelError(
            f"{fields.path}: 'no_rope_layers' must hold 0 or 1 for each of {num_layers} layers, got {list(flags)[:40]}"
        )
    return tuple(flag == 1.0 for flag in flags[:num_layers])
