"""The operations of a model's layers in Triton, for GPUs; what they compute is written down in `ops.torch_ops`."""

from __future__ import annotations

from tokenloom.ops.triton_layers.operations import (
    add_rms_norm,
    gelu_tanh_and_mul,
    head_rms_norm,
    is_interpreted,
    rms_norm,
    rotary,
    silu_and_mul,
)

__all__ = ["add_rms_norm", "gelu_tanh_and_mul", "head_rms_norm", "is_interpreted", "rms_norm", "rotary", "silu_and_mul"]
