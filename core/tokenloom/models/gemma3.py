"""Gemma 3, text only: Gemma 2 with normed queries and keys instead of a cap on scores, and five local layers to a
global one, each kind with a rotary embedding of its own.

Source: Gemma Team, Gemma 3 Technical Report (2025).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, final

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError
from tokenloom.model_config import ModelConfig, RopeConfig
from tokenloom.models.architecture import Architecture
from tokenloom.models.causal_lm import CausalLM
from tokenloom.models.config_fields import KeyDefaults, base_config, rope_scope
from tokenloom.models.config_json import checked_json
from tokenloom.models.decoder import Decoder
from tokenloom.models.decoder_layer import SandwichNormLayer
from tokenloom.models.gemma_fields import GEMMA_KEYS, gemma_json, read_cap, read_gemma, read_gemma_windows
from tokenloom.models.gemma_gguf import GEMMA_LAYER_NAMES, gemma_values
from tokenloom.models.gguf_layout import GGUFFacts, GGUFLayout, swa_layer_types
from tokenloom.models.layers import LayerFactory
from tokenloom.models.refused_keys import refuse_unknown_arithmetic
from tokenloom.models.rope_fields import parse_rope, rope_json

__all__ = ["Gemma3Architecture"]

_DEFAULTS = KeyDefaults(
    num_heads=8,
    num_kv_heads=4,
    head_dim=256,
    vocab_size=262208,
    max_positions=131072,
    rope_theta=None,
    tie_word_embeddings=True,
    activation_key="hidden_activation",
    activation="gelu_pytorch_tanh",
)
_GLOBAL_THETA, _LOCAL_THETA = 1e6, 1e4
_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})

_GGUF_NAMES = {**GEMMA_LAYER_NAMES, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}


@final
class Gemma3Architecture(Architecture):
    """Sandwich-norm layers; all but every sixth have the window and the local rotary embedding."""

    def read_config(self, fields: Fields, tensor_names: Collection[str]) -> ModelConfig:
        refuse_unknown_arithmetic(fields, "gemma3", GEMMA_KEYS | {"rope_local_base_freq", "sliding_window_pattern"})
        config = read_gemma(fields, base_config(fields, "gemma3", tensor_names, _DEFAULTS))
        pattern = fields.integer("sliding_window_pattern", 6)
        windows = read_gemma_windows(fields, config.num_layers, lambda index: (index + 1) % pattern != 0)
        local_rope, global_rope = _ropes(fields, config)
        return replace(
            config,
            has_qk_norm=True,
            windows=windows,
            ropes=tuple(global_rope if window is None else local_rope for window in windows),
            final_soft_cap=read_cap(fields, "final_logit_softcapping", None),
        )

    def make_model(self, config: ModelConfig, factory: LayerFactory, layers: range | None) -> CausalLM:
        return Decoder(config, factory, SandwichNormLayer, layers)

    def gguf_layout(self) -> GGUFLayout:
        return GGUFLayout(
            layer_names=_GGUF_NAMES,
            norm_offset=1.0,
            keys=(
                "attention.sliding_window",
                "attention.sliding_window_pattern",
                "final_logit_softcapping",
                "rope.freq_base_swa",
            ),
            config_values=_gguf_values,
        )

    def config_json(self, config: ModelConfig) -> dict[str, Any]:
        values = gemma_json(config, "gemma3_text", "Gemma3ForCausalLM")
        for rope, window in zip(config.ropes, config.windows):
            if rope is not None and window is not None:
                values["rope_local_base_freq"] = rope.theta
            elif rope is not None:
                values |= rope_json(rope, config.head_dim, config.max_position_embeddings)
        return checked_json(self, config, values)


def _ropes(fields: Fields, config: ModelConfig) -> tuple[RopeConfig, RopeConfig]:
    """(local, global). Newer files have one entry per layer type; in older ones rope_scaling is the global layers'."""
    by_type = fields.group("rope_parameters") or Fields({}, fields.path)
    unknown = [key for key in by_type.keys if key not in _LAYER_TYPES]
    if unknown:
        raise ModelError(
            f"{fields.path}: 'rope_parameters' of a gemma3 model holds one entry per layer type, got {unknown[0]!r}"
        )
    old = fields.group("rope_scaling")
    if old is not None and old.keys and by_type.keys:
        raise ModelError(f"{fields.path} has both 'rope_scaling' and 'rope_parameters'; keep one of them")
    empty = Fields({}, fields.path)
    scope = rope_scope(fields, config.head_dim, config.max_position_embeddings, _GLOBAL_THETA)
    # Entries per layer type are read on their own: a trained length beside them counts for none.
    scope = replace(scope, original_positions=None)
    global_rope = parse_rope(by_type.group("full_attention") or old or empty, scope)
    local_theta = fields.number("rope_local_base_freq", _LOCAL_THETA)
    local_scope = replace(scope, theta=local_theta)
    return parse_rope(by_type.group("sliding_attention") or empty, local_scope), global_rope


def _gguf_values(facts: GGUFFacts, values: Mapping[str, Any]) -> Mapping[str, Any]:
    window = facts.integer("attention.sliding_window", 0, minimum=0)
    num_layers = values["num_hidden_layers"]
    types = swa_layer_types(facts, num_layers, default_period=6) if window > 0 else ["full_attention"] * num_layers
    # A scaling that the file states is that of the layers with full attention.
    local_rope = {"rope_type": "default", "rope_theta": facts.number("rope.freq_base_swa", _LOCAL_THETA)}
    return {
        **gemma_values(facts, values, layers_of_27b=62),
        "layer_types": types,
        "rope_parameters": {"full_attention": values["rope_parameters"], "sliding_attention": local_rope},
        **({"sliding_window": window} if window > 0 else {}),
    }
