"""The layers' operations: each checks what it is given and launches a kernel. Meanings and shapes: `ops.torch_ops`.

The functions named `*_launch` say how; `tokenloom.testing.kernel_gate` compiles the same launches ahead of time.
"""

from __future__ import annotations

import torch
import triton

from tokenloom.ops.kernel_launch import KernelLaunch
from tokenloom.ops.triton_layers.kernels import (
    add_rms_norm_kernel,
    gated_kernel,
    head_rms_norm_kernel,
    rms_norm_kernel,
    rotary_kernel,
)

__all__ = [
    "add_rms_norm",
    "add_rms_norm_launch",
    "gated_launch",
    "gelu_tanh_and_mul",
    "head_rms_norm",
    "head_rms_norm_launch",
    "is_interpreted",
    "rms_norm",
    "rms_norm_launch",
    "rotary",
    "rotary_launch",
    "silu_and_mul",
]

_GATED_COLUMNS = 1024
_TILE_ELEMENTS = 4096
"""Elements of a program that works on heads: 32 for each of 128 threads."""


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on a CPU: TRITON_INTERPRET=1 was set when triton was imported."""
    return not isinstance(rms_norm_kernel, triton.JITFunction)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`torch_ops.rms_norm`, rounded once whatever the weight's dtype."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rms_norm_launch(out, x, weight, eps).run()
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`torch_ops.add_rms_norm`: the sum is rounded as it is stored, and then normed."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    add_rms_norm_launch(out, x, residual, weight, eps).run()
    return out, residual


def head_rms_norm(heads: torch.Tensor, weights: torch.Tensor, num_queries: int, eps: float) -> torch.Tensor:
    """`torch_ops.head_rms_norm`."""
    out = torch.empty(heads.shape, dtype=heads.dtype, device=heads.device)
    head_rms_norm_launch(out, heads, weights, num_queries, eps).run()
    return out


def rotary(heads: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """`torch_ops.rotary`, computed in fp32 and rounded once."""
    out = torch.empty(heads.shape, dtype=heads.dtype, device=heads.device)
    rotary_launch(out, heads, cos, signed_sin).run()
    return out


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`torch_ops.silu_and_mul`, computed in fp32 and rounded once."""
    out = torch.empty((gate_up.shape[0], gate_up.shape[1] // 2), dtype=gate_up.dtype, device=gate_up.device)
    gated_launch(out, gate_up, is_gelu=False).run()
    return out


def gelu_tanh_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`torch_ops.gelu_tanh_and_mul`, computed in fp32 and rounded once."""
    out = torch.empty((gate_up.shape[0], gate_up.shape[1] // 2), dtype=gate_up.dtype, device=gate_up.device)
    gated_launch(out, gate_up, is_gelu=True).run()
    return out


def rms_norm_launch(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float) -> KernelLaunch:
    """Of `rms_norm`: out [T, H], contiguous."""
    num_rows, size = x.shape
    _check_rows(x, weight, size)
    block = triton.next_power_of_2(size)
    return KernelLaunch(
        rms_norm_kernel,
        (num_rows,),
        arguments={"out": out, "x": x, "weight": weight, "stride_x": x.stride(0), "size": size, "eps": eps},
        constants={"BLOCK": block},
        num_warps=_row_warps(block),
        num_stages=1,
    )


def add_rms_norm_launch(
    out: torch.Tensor, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> KernelLaunch:
    """Of `add_rms_norm`: out [T, H], contiguous."""
    num_rows, size = x.shape
    _check_rows(x, weight, size)
    assert residual.shape == x.shape, f"residual {residual.shape} for {x.shape}"
    assert residual.dtype == x.dtype, f"residual of {residual.dtype} for {x.dtype}"
    assert residual.stride(1) == 1, f"residual with strides {residual.stride()}"
    block = triton.next_power_of_2(size)
    return KernelLaunch(
        add_rms_norm_kernel,
        (num_rows,),
        arguments={
            "out": out,
            "x": x,
            "residual": residual,
            "weight": weight,
            "stride_x": x.stride(0),
            "stride_residual": residual.stride(0),
            "size": size,
            "eps": eps,
        },
        constants={"BLOCK": block},
        num_warps=_row_warps(block),
        num_stages=1,
    )


def head_rms_norm_launch(
    out: torch.Tensor, heads: torch.Tensor, weights: torch.Tensor, num_queries: int, eps: float
) -> KernelLaunch:
    """Of `head_rms_norm`: out [T, heads, D], contiguous."""
    num_tokens, num_heads, head_dim = heads.shape
    assert heads.stride(2) == 1, f"heads with strides {heads.stride()}"
    assert weights.shape == (2, head_dim), f"weights {weights.shape} for heads of {head_dim}"
    assert weights.is_contiguous(), f"weights with strides {weights.stride()}"
    block_dim = triton.next_power_of_2(head_dim)
    block_heads = _heads_of_a_program(num_heads, block_dim)
    return KernelLaunch(
        head_rms_norm_kernel,
        (num_tokens, triton.cdiv(num_heads, block_heads)),
        arguments={
            "out": out,
            "heads": heads,
            "weights": weights,
            "stride_token": heads.stride(0),
            "stride_head": heads.stride(1),
            "num_heads": num_heads,
            "num_queries": num_queries,
            "eps": eps,
        },
        constants={"HEAD_DIM": head_dim, "BLOCK_D": block_dim, "BLOCK_H": block_heads},
        num_warps=4,
        num_stages=1,
    )


def rotary_launch(out: torch.Tensor, heads: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> KernelLaunch:
    """Of `rotary`: out [T, heads, D], contiguous."""
    num_tokens, num_heads, head_dim = heads.shape
    half = cos.shape[2] // 2
    assert cos.shape == signed_sin.shape == (num_tokens, 1, 2 * half), f"{cos.shape}, {signed_sin.shape}"
    assert 0 < 2 * half <= head_dim, f"{2 * half} of {head_dim} elements turn"
    assert heads.stride(2) == cos.stride(2) == signed_sin.stride(2) == 1, f"heads with strides {heads.stride()}"
    block_half = triton.next_power_of_2(half)
    block_heads = _heads_of_a_program(num_heads, 2 * block_half)
    return KernelLaunch(
        rotary_kernel,
        (num_tokens, triton.cdiv(num_heads, block_heads)),
        arguments={
            "out": out,
            "heads": heads,
            "cos": cos,
            "signed_sin": signed_sin,
            "stride_token": heads.stride(0),
            "stride_head": heads.stride(1),
            "stride_cos": cos.stride(0),
            "stride_sin": signed_sin.stride(0),
            "num_heads": num_heads,
        },
        constants={
            "HEAD_DIM": head_dim,
            "HALF": half,
            "BLOCK_HALF": block_half,
            "BLOCK_REST": triton.next_power_of_2(max(1, head_dim - 2 * half)),
            "BLOCK_H": block_heads,
        },
        num_warps=4,
        num_stages=1,
    )


def gated_launch(out: torch.Tensor, gate_up: torch.Tensor, *, is_gelu: bool) -> KernelLaunch:
    """Of `silu_and_mul` and `gelu_tanh_and_mul`: out [T, I], contiguous."""
    num_rows, both = gate_up.shape
    assert both % 2 == 0, f"{both} columns of gates and values"
    assert gate_up.stride(1) == 1, f"gates with strides {gate_up.stride()}"
    block = min(_GATED_COLUMNS, triton.next_power_of_2(both // 2))
    return KernelLaunch(
        gated_kernel,
        (num_rows, triton.cdiv(both // 2, block)),
        arguments={"out": out, "gate_up": gate_up, "stride_row": gate_up.stride(0), "size": both // 2},
        constants={"IS_GELU": is_gelu, "BLOCK": block},
        num_warps=4,
        num_stages=1,
    )


def _check_rows(x: torch.Tensor, weight: torch.Tensor, size: int) -> None:
    assert x.stride(1) == 1, f"rows with strides {x.stride()}"
    assert weight.shape == (size,), f"weight {weight.shape} for rows of {size}"
    assert weight.is_contiguous(), f"weight with strides {weight.stride()}"


def _row_warps(block: int) -> int:
    """Warps for a row in registers: 16 elements a thread, and 32 or more from 8,192 elements on."""
    return min(16, max(1, block // 512))


def _heads_of_a_program(num_heads: int, block_dim: int) -> int:
    return int(min(triton.next_power_of_2(num_heads), max(1, _TILE_ELEMENTS // block_dim)))
