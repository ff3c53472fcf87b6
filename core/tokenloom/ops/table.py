"""The table of fused operations that models call, and the choice of an implementation for a device.

Every implementation of an operation means exactly what the plain torch reference in `torch_ops.py` computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tokenloom.ops import torch_ops

__all__ = ["AddRmsNorm", "LinearProduct", "OpTable", "RmsNorm", "Rotary", "SiluAndMul", "build_op_table"]

LinearProduct = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
RmsNorm = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
AddRmsNorm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], tuple[torch.Tensor, torch.Tensor]]
Rotary = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
SiluAndMul = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class OpTable:
    """One implementation of each operation; T may be 0, and leading rows may be strided.

    Attributes:
        linear: (x [M, K], weight [N, K], bias [N] or None) -> x @ weight.T + bias, [M, N].
        rms_norm: (x [T, H], weight [H], eps) -> x / rms(x) * weight, [T, H].
        add_rms_norm: (x [T, H], residual [T, H], weight [H], eps) -> (rms_norm of the sum, the sum). The sum is written
            into `residual`, which is returned: whoever needs the old one keeps a copy.
        rotary: (heads [T, any, D], cos [T, 1, R], signed_sin [T, 1, R]) -> [T, any, D], R <= D. Rotates the first R
            elements of each head, element i paired with i + R/2 (not with its neighbour). cos and sin hold each angle
            twice, once per half; the first half of signed_sin is negated. Queries and keys that lie side by side are
            rotated in one call.
        silu_and_mul: (gate_up [T, 2 * I]) -> silu(first half) * second half, [T, I].
    """

    linear: LinearProduct
    rms_norm: RmsNorm
    add_rms_norm: AddRmsNorm
    rotary: Rotary
    silu_and_mul: SiluAndMul


def build_op_table(device: torch.device, *, deterministic: bool = False) -> OpTable:
    """The operations for models on `device`. Called at build time; the hot path only calls what it holds.

    Args:
        device: where the operands live.
        deterministic: results of a row must not depend on the other rows, bit for bit.
    """
    assert device.type != "meta", "operations are for real tensors"
    return OpTable(
        linear=torch_ops.row_invariant_linear if deterministic else torch_ops.linear,
        rms_norm=torch_ops.rms_norm,
        add_rms_norm=torch_ops.add_rms_norm,
        rotary=torch_ops.rotary,
        silu_and_mul=torch_ops.silu_and_mul,
    )
