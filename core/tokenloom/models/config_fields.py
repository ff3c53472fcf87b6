"""Reads what the config.json files of most families have in common, in old and new spellings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tokenloom.checkpoint.fields import MAX_LAYERS, Fields
from tokenloom.errors import ModelError
from tokenloom.model_config import ModelConfig
from tokenloom.models.rope_fields import RopeScope, read_rope

__all__ = ["ACTIVATIONS", "KeyDefaults", "base_config", "read_layer_types", "read_window", "rope_scope", "windows_of"]

ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
"""{an activation in config.json: in ModelConfig}."""

_LAYER_TYPES = ("full_attention", "sliding_attention")
_PROBE_LAYER = "model.layers.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDefaults:
    """What a family means by keys that config.json leaves out.

    Attributes:
        num_heads, vocab_size: None makes the key required.
        num_kv_heads: None stands for as many as query heads.
        head_dim: None stands for hidden_size / num_attention_heads.
        max_positions, rms_norm_eps, tie_word_embeddings: of the keys of nearly the same name.
        rope_theta: base of the one rotary embedding of all layers; None leaves `ropes` empty, for the family to fill.
        rotates_in_part: `partial_rotary_factor` may be less than 1.
        activation_key, activation: how the family calls the activation, and which it is.
    """

    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    vocab_size: int | None = None
    max_positions: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = 10000.0
    rotates_in_part: bool = False
    tie_word_embeddings: bool = False
    activation_key: str = "hidden_act"
    activation: str = "silu"


def base_config(fields: Fields, architecture: str, tensor_names: Collection[str], defaults: KeyDefaults) -> ModelConfig:
    """A config with every size, one rotary embedding for all layers and full attention; families replace the rest.

    Args:
        fields: content of config.json.
        architecture: the family's name.
        tensor_names: of the checkpoint.
        defaults: what absent keys mean.

    Raises:
        ModelError: naming the file and the key that is missing or wrong.
    """
    hidden_size = fields.integer("hidden_size")
    num_layers = fields.integer("num_hidden_layers", maximum=MAX_LAYERS)
    num_heads = fields.integer("num_attention_heads", defaults.num_heads)
    head_dim = _head_dim(fields, hidden_size, num_heads, defaults.head_dim)
    max_positions = fields.integer("max_position_embeddings", defaults.max_positions)
    theta = defaults.rope_theta
    scope = None if theta is None else rope_scope(fields, head_dim, max_positions, theta)
    if scope is not None:
        scope = replace(scope, rotates_in_part=defaults.rotates_in_part)
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(fields, num_heads, defaults.num_kv_heads),
        head_dim=head_dim,
        vocab_size=fields.integer("vocab_size", defaults.vocab_size),
        max_position_embeddings=max_positions,
        rms_norm_eps=fields.number("rms_norm_eps", defaults.rms_norm_eps),
        ropes=() if scope is None else (read_rope(fields, scope),) * num_layers,
        windows=(None,) * num_layers,
        dtype="",
        hidden_act=_activation(fields, defaults),
        tie_word_embeddings=fields.flag("tie_word_embeddings", defaults.tie_word_embeddings),
        is_qkv_fused=_holds(tensor_names, f"{_PROBE_LAYER}.self_attn.qkv_proj."),
        is_gate_up_fused=_holds(tensor_names, f"{_PROBE_LAYER}.mlp.gate_up_proj."),
    )


def rope_scope(fields: Fields, head_dim: int, max_positions: int, theta: float) -> RopeScope:
    """What a rope entry of this file is read against; `theta` counts where the file states none."""
    original = "original_max_position_embeddings"
    return RopeScope(
        head_dim=head_dim,
        max_positions=max_positions,
        theta=fields.number("rope_theta", theta),
        share=fields.number("partial_rotary_factor", 1.0),
        original_positions=fields.integer(original) if fields.has(original) else None,
    )


def read_layer_types(fields: Fields, num_layers: int) -> tuple[str, ...]:
    """The entries of `layer_types`, one per layer; empty where the key is absent."""
    types = fields.texts("layer_types")
    unknown = [kind for kind in types if kind not in _LAYER_TYPES]
    if unknown:
        raise ModelError(
            f"{fields.path}: 'layer_types' holds {unknown[0]!r}; supported are {' and '.join(_LAYER_TYPES)}"
        )
    if types and len(types) != num_layers:
        raise ModelError(f"{fields.path}: 'layer_types' has {len(types)} entries for {num_layers} layers")
    return types


def read_window(fields: Fields, default: int | None) -> int | None:
    """`sliding_window`; null is none, and an absent key stands for `default`."""
    if not fields.has("sliding_window"):
        return None if fields.is_null("sliding_window") else default
    return fields.integer("sliding_window")


def windows_of(fields: Fields, layer_types: tuple[str, ...], window: int | None) -> tuple[int | None, ...]:
    """The window of each layer: `window` where the type says so. Raises ModelError if there is none."""
    if window is None and "sliding_attention" in layer_types:
        raise ModelError(
            f"{fields.path}: 'layer_types' names sliding layers, but the file switches windows off or states no "
            "'sliding_window'"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in layer_types)


def _head_dim(fields: Fields, hidden_size: int, num_heads: int, default: int | None) -> int:
    if fields.has("head_dim"):
        return fields.integer("head_dim")
    if default is not None and not fields.is_null("head_dim"):
        return default
    if hidden_size % num_heads != 0:
        raise ModelError(
            f"{fields.path}: 'hidden_size' {hidden_size} is not a multiple of 'num_attention_heads' {num_heads}, "
            "and 'head_dim' is absent"
        )
    return max(1, hidden_size // num_heads)


def _num_kv_heads(fields: Fields, num_heads: int, default: int | None) -> int:
    key = "num_key_value_heads"
    return fields.integer(key, num_heads if default is None or fields.is_null(key) else default)


def _activation(fields: Fields, defaults: KeyDefaults) -> str:
    key = defaults.activation_key
    word = fields.text(key, defaults.activation)
    if word not in ACTIVATIONS:
        raise ModelError(f"{fields.path}: {key} must be one of {', '.join(ACTIVATIONS)}, got {word!r}")
    return ACTIVATIONS[word]


def _holds(tensor_names: Collection[str], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in tensor_names)
