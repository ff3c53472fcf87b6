"""Gemma 2: norms on both sides of each part, soft caps, and a window in every other layer.

Source: Gemma Team, Gemma 2 (2024).
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
from tokenloom.models.config_json import checked_json, shared_rope_json
from tokenloom.models.decoder import Decoder
from tokenloom.models.decoder_layer import SandwichNormLayer
from tokenloom.models.gemma_fields import GEMMA_KEYS, gemma_json, read_cap, read_gemma, read_gemma_windows
from tokenloom.models.gemma_gguf import GEMMA_LAYER_NAMES, gemma_values
from tokenloom.models.gguf_layout import GGUFFacts, GGUFLayout, swa_layer_types
from tokenloom.models.layers import LayerFactory
from tokenloom.models.refused_keys import refuse_unknown_arithmetic

__all__ = ["Gemma2Architecture"]

_DEFAULTS = KeyDefaults(
    num_kv_heads=4,
    head_dim=256,
    max_positions=8192,
    tie_word_embeddings=True,
    activation_key="hidden_activation",
    activation="gelu_pytorch_tanh",
)


@final
class Gemma2Architecture(Architecture):
    """Sandwich-norm layers; the first layer and every other from there have the window."""

    def read_config(self, fields: Fields, tensor_names: Collection[str]) -> ModelConfig:
        refuse_unknown_arithmetic(fields, "gemma2", GEMMA_KEYS | {"attn_logit_softcapping"})
        config = read_gemma(fields, base_config(fields, "gemma2", tensor_names, _DEFAULTS))
        return replace(
            config,
            windows=read_gemma_windows(fields, config.num_layers, lambda index: index % 2 == 0),
            attn_soft_cap=read_cap(fields, "attn_logit_softcapping", 50.0),
            final_soft_cap=read_cap(fields, "final_logit_softcapping", 30.0),
        )

    def make_model(self, config: ModelConfig, factory: LayerFactory, layers: range | None) -> CausalLM:
        return Decoder(config, factory, SandwichNormLayer, layers)

    def gguf_layout(self) -> GGUFLayout:
        return GGUFLayout(
            layer_names=GEMMA_LAYER_NAMES,
            norm_offset=1.0,
            keys=(
                "attention.sliding_window",
                "attention.sliding_window_pattern",
                "attn_logit_softcapping",
                "final_logit_softcapping",
            ),
            config_values=_gguf_values,
        )

    def config_json(self, config: ModelConfig) -> dict[str, Any]:
        values = {
            **gemma_json(config, "gemma2", "Gemma2ForCausalLM"),
            **shared_rope_json(config),
            "attn_logit_softcapping": config.attn_soft_cap,
        }
        return checked_json(self, config, values)


def _gguf_values(facts: GGUFFacts, values: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        **gemma_values(facts, values, layers_of_27b=46),
        "sliding_window": facts.integer("attention.sliding_window", 4096),
        "layer_types": swa_layer_types(facts, values["num_hidden_layers"], default_period=2),
    }
