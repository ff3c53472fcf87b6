"""What checkpoints call the scales of keys and values, which belong to attention and not to any layer's weights."""

from __future__ import annotations

__all__ = ["KEY_SCALES", "VALUE_SCALES", "is_kv_scale"]

KEY_SCALES = ("k_scale", "attn.k_scale", "k_proj.output_scale", "k_proj.k_scale")
VALUE_SCALES = ("v_scale", "attn.v_scale", "v_proj.output_scale", "v_proj.v_scale")
"""Below "model.layers.N.self_attn.", the usual name first."""
_ATTENTION = ".self_attn."


def is_kv_scale(name: str) -> bool:
    """Whether a tensor holds scales of keys or values."""
    return name.partition(_ATTENTION)[2] in (*KEY_SCALES, *VALUE_SCALES)
