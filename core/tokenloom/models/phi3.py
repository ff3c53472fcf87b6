"""Phi-3, Phi-3.5 and Phi-4-mini: Llama's layers, stored fused, with LongRoPE and one window for all layers if asked.

Source: Abdin et al., Phi-3 Technical Report (2024).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, final

from tokenloom.checkpoint.fields import Fields
from tokenloom.model_config import ModelConfig
from tokenloom.models.architecture import Architecture
from tokenloom.models.causal_lm import CausalLM
from tokenloom.models.config_fields import KeyDefaults, base_config, read_window, rope_scope
from tokenloom.models.config_json import base_json, checked_json, shared_rope_json
from tokenloom.models.decoder import Decoder
from tokenloom.models.decoder_layer import PreNormLayer
from tokenloom.models.gguf_layout import GGUFFacts, GGUFLayout
from tokenloom.models.layers import LayerFactory
from tokenloom.models.refused_keys import refuse_unknown_arithmetic
from tokenloom.models.rope_fields import read_rope

__all__ = ["Phi3Architecture"]

_DEFAULTS = KeyDefaults(max_positions=4096, rms_norm_eps=1e-5, rope_theta=None)
_DEFAULT_ORIGINAL_POSITIONS = 4096
_ROPE_TYPES = {"su": "longrope", "yarn": "longrope"}  # what early files call it

_GGUF_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}


@final
class Phi3Architecture(Architecture):
    """Pre-norm layers whose q, k and v (gate and up) are one tensor in the checkpoint."""

    def read_config(self, fields: Fields, tensor_names: Collection[str]) -> ModelConfig:
        refuse_unknown_arithmetic(fields, "phi3", {"sliding_window"})
        config = base_config(fields, "phi3", tensor_names, _DEFAULTS)
        scope = rope_scope(fields, config.head_dim, config.max_position_embeddings, 10000.0)
        original = scope.original_positions or _DEFAULT_ORIGINAL_POSITIONS
        rope = read_rope(fields, replace(scope, original_positions=original, renamed=_ROPE_TYPES, rotates_in_part=True))
        return replace(
            config,
            ropes=(rope,) * config.num_layers,
            windows=(read_window(fields, None),) * config.num_layers,
        )

    def make_model(self, config: ModelConfig, factory: LayerFactory, layers: range | None) -> CausalLM:
        return Decoder(config, factory, PreNormLayer, layers)

    def gguf_layout(self) -> GGUFLayout:
        return GGUFLayout(
            layer_names=_GGUF_NAMES,
            rotates_in_part=True,
            keys=("attention.sliding_window",),
            config_values=_gguf_values,
        )

    def config_json(self, config: ModelConfig) -> dict[str, Any]:
        values = {
            "original_max_position_embeddings": config.max_position_embeddings,
            **base_json(config, "phi3", "Phi3ForCausalLM"),
            **shared_rope_json(config),
            "sliding_window": config.windows[0],
        }
        return checked_json(self, config, values)


def _gguf_values(facts: GGUFFacts, values: Mapping[str, Any]) -> Mapping[str, Any]:
    window = facts.integer("attention.sliding_window", 0, minimum=0)
    original = facts.integer("rope.scaling.original_context_length", values["max_position_embeddings"])
    return {
        "original_max_position_embeddings": original,
        **({"sliding_window": window} if window > 0 else {}),
    }
