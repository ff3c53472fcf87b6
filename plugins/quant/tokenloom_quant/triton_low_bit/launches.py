"""The operations on packed weights: they check what they are given, and launch the kernels.

The functions named `*_launches` say how; `tokenloom.testing.kernel_gate` compiles the same launches ahead of time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from tokenloom.ops.kernel_launch import KernelLaunch
from tokenloom.ops.triton_card import Card, card_of
from tokenloom_quant.triton_low_bit.packing import PackedCodes, PackedEightBits
from tokenloom_quant.triton_low_bit.sized_launches import grouped_kernels, rounding_kernel, scaled_kernels

__all__ = [
    "grouped_launches",
    "grouped_product",
    "round_rows",
    "round_rows_launch",
    "scaled_launches",
    "scaled_product",
]

_Operands = Mapping[str, torch.Tensor | None]


def grouped_product(
    x: torch.Tensor,
    weight: PackedCodes,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
    *,
    deterministic: bool,
) -> torch.Tensor:
    """x @ W.T + bias, W being the dequantized codes.

    Args:
        x: [M, K], float32, float16 or bfloat16; M may be 0, rows may be strided.
        weight: W, [N, K], on the device of x.
        bias: [N] or None.
        out_dtype: of the result.
        deterministic: a row's result does not depend on the other rows, bit for bit.

    Returns:
        [M, N].
    """
    out = torch.empty(x.shape[0], weight.num_features, dtype=out_dtype, device=x.device)
    for launch, operands in _grouped(out, x, weight, bias, card_of(x.device), deterministic=deterministic):
        launch.run(operands)
    return out


def scaled_product(
    codes: torch.Tensor,
    row_scale: torch.Tensor,
    weight: PackedEightBits,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
    *,
    deterministic: bool,
) -> torch.Tensor:
    """(codes * row_scale) @ W.T + bias.

    Args:
        codes, row_scale: of `round_rows`, with the groups of the weight.
        weight: W, [N, K], dtype of codes.
        bias: [N] or None.
        out_dtype: of the result.
        deterministic: as above.

    Returns:
        [M, N].
    """
    out = torch.empty(codes.shape[0], weight.weight.shape[0], dtype=out_dtype, device=codes.device)
    card = card_of(codes.device)
    for launch, operands in _scaled(out, codes, row_scale, weight, bias, card, deterministic=deterministic):
        launch.run(operands)
    return out


def round_rows(x: torch.Tensor, dtype: torch.dtype, weight: PackedEightBits) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds each group of each row of x [M, K], its largest magnitude to 127 (int8) or 448 (e4m3).

    Returns:
        (codes [M, padded K] of `dtype`, zero where they are filled up; scale fp32 [M, groups]).
    """
    codes = torch.empty(x.shape[0], weight.weight.shape[1], dtype=dtype, device=x.device)
    row_scale = torch.empty(x.shape[0], weight.scale.shape[1], dtype=torch.float32, device=x.device)
    launch, operands = _rounding(codes, row_scale, x, weight.group_size)
    launch.run(operands)
    return codes, row_scale


def grouped_launches(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: PackedCodes,
    bias: torch.Tensor | None,
    card: Card,
    *,
    deterministic: bool,
) -> list[KernelLaunch]:
    """What `grouped_product` launches: one kernel, and another one where input features are split."""
    return _whole(_grouped(out, x, weight, bias, card, deterministic=deterministic))


def scaled_launches(
    out: torch.Tensor,
    codes: torch.Tensor,
    row_scale: torch.Tensor,
    weight: PackedEightBits,
    bias: torch.Tensor | None,
    card: Card,
    *,
    deterministic: bool,
) -> list[KernelLaunch]:
    """What `scaled_product` launches."""
    return _whole(_scaled(out, codes, row_scale, weight, bias, card, deterministic=deterministic))


def round_rows_launch(codes: torch.Tensor, row_scale: torch.Tensor, x: torch.Tensor, group_size: int) -> KernelLaunch:
    """What `round_rows` launches: codes [M, padded K], row_scale [M, groups], x [M, K]."""
    return _whole([_rounding(codes, row_scale, x, group_size)])[0]


def _grouped(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: PackedCodes,
    bias: torch.Tensor | None,
    card: Card,
    *,
    deterministic: bool,
) -> list[tuple[KernelLaunch, _Operands]]:
    assert x.shape[1] == weight.num_columns, f"{x.shape[1]} columns for a weight of {weight.num_columns}"
    assert x.stride(1) == 1, f"rows with strides {x.stride()}"
    launches = grouped_kernels(card, x.shape[0], x.stride(0), x.dtype, weight.form, deterministic)
    return _with_results(
        launches, out, bias, {"x": x, "codes": weight.codes, "scale": weight.scale, "offset": weight.offset}
    )


def _scaled(
    out: torch.Tensor,
    codes: torch.Tensor,
    row_scale: torch.Tensor,
    weight: PackedEightBits,
    bias: torch.Tensor | None,
    card: Card,
    *,
    deterministic: bool,
) -> list[tuple[KernelLaunch, _Operands]]:
    num_features, num_columns = weight.weight.shape
    num_groups = weight.scale.shape[1]
    assert codes.shape[1] == num_columns, f"{codes.shape[1]} columns for a weight of {num_columns}"
    assert codes.dtype == weight.weight.dtype, f"{codes.dtype} times {weight.weight.dtype}"
    assert row_scale.shape == (codes.shape[0], num_groups), f"scales {row_scale.shape} for {num_groups} groups"
    assert codes.is_contiguous(), f"codes with strides {codes.stride()}"
    sizes = (codes.shape[0], num_features, num_columns, num_groups, weight.group_size)
    launches = scaled_kernels(card, sizes, codes.dtype, deterministic)
    operands = {"codes": codes, "row_scale": row_scale, "weight": weight.weight, "scale": weight.scale}
    return _with_results(launches, out, bias, operands)


def _rounding(
    codes: torch.Tensor, row_scale: torch.Tensor, x: torch.Tensor, group_size: int
) -> tuple[KernelLaunch, _Operands]:
    assert x.stride(1) == 1, f"rows with strides {x.stride()}"
    sizes = (*x.shape, codes.shape[1], row_scale.shape[1], group_size)
    return rounding_kernel(sizes, x.stride(0), codes.dtype), {"codes": codes, "row_scale": row_scale, "x": x}


def _with_results(
    launches: Sequence[KernelLaunch], out: torch.Tensor, bias: torch.Tensor | None, operands: _Operands
) -> list[tuple[KernelLaunch, _Operands]]:
    """Launches with their tensors: a product, and what adds up its splits."""
    product, *adding = launches
    partial = None
    if adding:
        partial = torch.empty(product.grid[2], *out.shape, dtype=torch.float32, device=out.device)
    results = {"out": out, "partial": partial, "bias": bias}
    return [(product, {**results, **operands}), *((add, results) for add in adding)]


def _whole(launches: Sequence[tuple[KernelLaunch, _Operands]]) -> list[KernelLaunch]:
    return [replace(launch, arguments={**operands, **launch.arguments}) for launch, operands in launches]
