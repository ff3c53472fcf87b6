"""The table of fused operations that models call, and the implementations to choose from.

Every implementation of an operation means what the plain torch reference in `torch_ops.py` computes, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch

from tokenloom.ops import torch_ops
from tokenloom.ops.native_ops import NativeLinear, native_module
from tokenloom.ops.packed_linear import PackLinear, PlainLinear
from tokenloom.ops.weight_memory import WeightMemory

__all__ = [
    "AddRmsNorm",
    "GatedActivation",
    "HeadRmsNorm",
    "OpTable",
    "OpsName",
    "RmsNorm",
    "Rotary",
    "SplitRotary",
    "build_op_table",
    "outline_op_table",
]

OpsName = Literal["torch", "native", "triton"]
RmsNorm = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
AddRmsNorm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], tuple[torch.Tensor, torch.Tensor]]
HeadRmsNorm = Callable[[torch.Tensor, torch.Tensor, int, float], torch.Tensor]
Rotary = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
SplitRotary = Callable[
    [torch.Tensor, int, int, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]
]
GatedActivation = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class OpTable:
    """One implementation of each operation; T may be 0, and leading rows may be strided.

    Attributes:
        pack_linear: (weight [N, K], bias [N] or None) -> a `PackedLinear`, whose `apply` takes x [M, K] to
            x @ weight.T + bias, [M, N].
        rms_norm: (x [T, H], weight [H], eps) -> x / rms(x) * weight, [T, H]. The weight has x's dtype, or is fp32: then
            the product is fp32 as well, rounded once.
        add_rms_norm: (x [T, H], residual [T, H], weight [H], eps) -> (rms_norm of the sum, the sum). The sum is written
            into `residual`, which is returned: whoever needs the old one keeps a copy.
        head_rms_norm: (heads [T, Hq + Hkv, D], weights [2, D], Hq, eps) -> same shape, a new tensor: each head normed
            by itself and multiplied by weights[0] (the first Hq) or weights[1]; dtypes as for rms_norm.
        rotary: (heads [T, any, D], cos [T, 1, R], signed_sin [T, 1, R]) -> [T, any, D], R <= D. Rotates the first R
            elements of each head, element i paired with i + R/2 (not with its neighbour). cos and sin hold each angle
            twice, once per half; the first half of signed_sin is negated. Queries and keys that lie side by side are
            rotated in one call.
        split_rotary: (projected [T, (Hq + 2 * Hkv) * D], Hq, Hkv, cos, signed_sin) -> queries [T, Hq, D] and keys
            [T, Hkv, D], both rotated, and values [T, Hkv, D], a view. Rows of each may be strided.
        silu_and_mul: (gate_up [T, 2 * I]) -> silu(first half) * second half, [T, I].
        gelu_tanh_and_mul: the same with GELU in its tanh form.
    """

    pack_linear: PackLinear
    rms_norm: RmsNorm
    add_rms_norm: AddRmsNorm
    head_rms_norm: HeadRmsNorm
    rotary: Rotary
    split_rotary: SplitRotary
    silu_and_mul: GatedActivation
    gelu_tanh_and_mul: GatedActivation


def build_op_table(device: torch.device, ops: OpsName = "torch", *, deterministic: bool = False) -> OpTable:
    """The operations for models on `device`. Called at build time; the hot path only calls what it holds.

    Args:
        device: where the operands live.
        ops: torch for any device and dtype; native, for bfloat16 on a CPU; or triton, for GPUs.
        deterministic: results of a row must not depend on the other rows, bit for bit.

    Raises:
        NativeBuildError: native operations cannot be built on this machine.
    """
    assert device.type != "meta", "operations are for real tensors"
    if ops == "native":
        assert device.type == "cpu", f"native operations on {device}"
        return _native_table(deterministic)
    if ops == "triton":
        return _triton_table(deterministic)
    return _torch_table(device, deterministic)


def outline_op_table(ops: OpsName) -> OpTable:
    """Operations for a model without memory: its layers know their sizes, and nothing is built."""
    table = _torch_table(torch.device("cpu"), deterministic=False)
    return replace(table, pack_linear=NativeLinear) if ops == "native" else table


def _torch_table(device: torch.device, deterministic: bool) -> OpTable:
    is_tiled = deterministic and device.type == "cpu"
    product = torch_ops.row_invariant_linear if deterministic else torch_ops.linear
    silu = torch_ops.row_invariant_silu_and_mul if is_tiled else torch_ops.silu_and_mul
    gelu_tanh = torch_ops.row_invariant_gelu_tanh_and_mul if is_tiled else torch_ops.gelu_tanh_and_mul
    return OpTable(
        pack_linear=partial(PlainLinear, product=product, gates={"silu": silu, "gelu_tanh": gelu_tanh}),
        rms_norm=torch_ops.rms_norm,
        add_rms_norm=torch_ops.add_rms_norm,
        head_rms_norm=torch_ops.head_rms_norm,
        rotary=torch_ops.rotary,
        split_rotary=partial(torch_ops.split_rotary, rotary=torch_ops.rotary),
        silu_and_mul=silu,
        gelu_tanh_and_mul=gelu_tanh,
    )


def _native_table(deterministic: bool) -> OpTable:
    module = native_module()
    return OpTable(
        pack_linear=partial(NativeLinear, memory=WeightMemory(), rows_apart=deterministic),
        rms_norm=module.rms_norm,
        add_rms_norm=module.add_rms_norm,
        head_rms_norm=module.head_rms_norm,
        rotary=module.rotary,
        split_rotary=module.split_rotary,
        silu_and_mul=module.silu_and_mul,
        gelu_tanh_and_mul=module.gelu_tanh_and_mul,
    )


def _triton_table(deterministic: bool) -> OpTable:
    # Triton is there on Linux only.
    from tokenloom.ops import triton_layers

    product = torch_ops.row_invariant_linear if deterministic else torch_ops.linear
    silu, gelu_tanh = triton_layers.silu_and_mul, triton_layers.gelu_tanh_and_mul
    return OpTable(
        pack_linear=partial(PlainLinear, product=product, gates={"silu": silu, "gelu_tanh": gelu_tanh}),
        rms_norm=triton_layers.rms_norm,
        add_rms_norm=triton_layers.add_rms_norm,
        head_rms_norm=triton_layers.head_rms_norm,
        rotary=triton_layers.rotary,
        split_rotary=partial(torch_ops.split_rotary, rotary=triton_layers.rotary),
        silu_and_mul=silu,
        gelu_tanh_and_mul=gelu_tanh,
    )
