"""What Gemma 2 and 3 share in GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenloom.models.gguf_layout import LLAMA_LAYER_NAMES, GGUFFacts, bias_values

__all__ = ["GEMMA_LAYER_NAMES", "gemma_values"]

GEMMA_LAYER_NAMES: Mapping[str, str] = {
    **LLAMA_LAYER_NAMES,
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def gemma_values(facts: GGUFFacts, values: Mapping[str, Any], layers_of_27b: int) -> dict[str, Any]:
    """Soft caps, biases and the softmax scale, which no key states.

    It follows from the size of a head, but for the one model of each generation that is scaled by the size that a head
    would have if all heads together were as wide as the model: the one of 27 billion weights.
    """
    is_27b = values["num_hidden_layers"] == layers_of_27b
    head_size = values["hidden_size"] // values["num_attention_heads"] if is_27b else values["head_dim"]
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    return {
        **bias_values(facts),
        **{cap: facts.number(cap) for cap in caps if facts.value(cap) is not None},
        "query_pre_attn_scalar": head_size,
    }
