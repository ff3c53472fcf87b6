"""Keys of config.json that change a model's arithmetic: one that a family's code does not know is refused.

Ignoring one would give wrong text without a word. Keys that no list names are ignored: files hold many that only
describe training, or the tools that wrote them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError

__all__ = ["ARITHMETIC_KEYS", "refuse_unknown_arithmetic"]

_OFF: tuple[object, ...] = (False,)
_ONE: tuple[object, ...] = (1,)
_NEVER: tuple[object, ...] = ()

ARITHMETIC_KEYS: Mapping[str, tuple[object, ...]] = {
    # windows, and which layers have which attention
    "sliding_window": _NEVER,
    "use_sliding_window": _OFF,
    "sliding_window_pattern": _NEVER,
    "attention_chunk_size": _NEVER,
    "no_rope_layers": _NEVER,
    "no_rope_layer_interval": _NEVER,
    "nope_layer_interval": _NEVER,
    "cross_attention_layers": _NEVER,
    "is_causal": (True,),
    "use_bidirectional_attention": _OFF,
    # scores and logits
    "query_pre_attn_scalar": _NEVER,
    "attn_logit_softcapping": _NEVER,
    "final_logit_softcapping": _NEVER,
    "attention_multiplier": _NEVER,
    "attn_temperature_tuning": _OFF,
    "attention_sinks": _OFF,
    "add_full_attention_sink_bias": _OFF,
    "add_swa_attention_sink_bias": _OFF,
    "logit_scale": _ONE,
    "logits_scaling": _ONE,
    "clip_qkv": _NEVER,
    # the residual stream and the embeddings
    "embedding_multiplier": _ONE,
    "residual_multiplier": _ONE,
    "scale_emb": _ONE,
    "scale_depth": _NEVER,
    "dim_model_base": _NEVER,
    "parallel_attn": _OFF,
    "use_parallel_residual": _OFF,
    "hidden_size_per_layer_input": _NEVER,
    "num_kv_shared_layers": (0,),
    # positions
    "alibi": _OFF,
    "use_alibi": _OFF,
    "rotary_pct": _ONE,
    "rope_local_base_freq": _NEVER,
    "rope_ratio": _ONE,
    "rope_interleave": _OFF,
    # projections and norms
    "attention_bias": _OFF,
    "attention_out_bias": _OFF,
    "qkv_bias": _OFF,
    "mlp_bias": _OFF,
    "use_bias": _OFF,
    "lm_head_bias": _OFF,
    "use_qk_norm": _OFF,
    "qk_norm": _OFF,
    "qk_layernorm": _OFF,
    "kv_lora_rank": _NEVER,
    "q_lora_rank": _NEVER,
    # the feed-forward network
    "hidden_activation": _NEVER,
    "swiglu_limit": _NEVER,
    "activation_sparsity_pattern": _NEVER,
    "num_local_experts": (0, 1),
    "num_experts": (0, 1),
    "n_routed_experts": (0, 1),
    "enable_moe_block": _OFF,
    "block_configs": _NEVER,
}
"""{key: the values that leave a plain decoder as it is}; null always does."""


def refuse_unknown_arithmetic(fields: Fields, family: str, known: Collection[str]) -> None:
    """Raises ModelError for the first key of the table that is not `known` to the family and not neutral."""
    for key in fields.keys:
        neutral = ARITHMETIC_KEYS.get(key)
        if neutral is not None and key not in known and fields.raw(key) not in neutral:
            raise ModelError(
                f"{fields.path} sets {key!r} to {str(fields.raw(key))[:80]}, which changes the model's arithmetic in a "
                f"way that the code for {family} does not know"
            )
