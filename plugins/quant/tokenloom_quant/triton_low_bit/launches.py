"""The operations on packed weights: they check what they are given, and launch the kernels.

The functions named `*_launches` say how; `tokenloom.testing.kernel_gate` compiles the same launches ahead of time.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import triton

from tokenloom.ops.kernel_launch import KernelLaunch
from tokenloom.ops.triton_card import Card, card_of
from tokenloom_quant.triton_low_bit.kernels import (
    add_splits_kernel,
    grouped_product_kernel,
    round_rows_kernel,
    scaled_product_kernel,
)
from tokenloom_quant.triton_low_bit.packing import PackedCodes, PackedEightBits
from tokenloom_quant.triton_low_bit.tiles import Tiles, Work, plan_splits, tiles_for

__all__ = [
    "grouped_launches",
    "grouped_product",
    "round_rows",
    "round_rows_launch",
    "scaled_launches",
    "scaled_product",
]

_LIMITS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
_ROUNDED_AT_ONCE = 4096
_ADDED_AT_ONCE = 512
_MAX_STEP = 128  # columns of a step of 8 bits times 8 bits


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
    for launch in grouped_launches(out, x, weight, bias, card_of(x.device), deterministic=deterministic):
        launch.run()
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
    for launch in scaled_launches(out, codes, row_scale, weight, bias, card, deterministic=deterministic):
        launch.run()
    return out


def round_rows(x: torch.Tensor, dtype: torch.dtype, weight: PackedEightBits) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds each group of each row of x [M, K], its largest magnitude to 127 (int8) or 448 (e4m3).

    Returns:
        (codes [M, padded K] of `dtype`, zero where they are filled up; scale fp32 [M, groups]).
    """
    codes = torch.empty(x.shape[0], weight.weight.shape[1], dtype=dtype, device=x.device)
    row_scale = torch.empty(x.shape[0], weight.scale.shape[1], dtype=torch.float32, device=x.device)
    round_rows_launch(codes, row_scale, x, weight.group_size).run()
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
    assert x.shape[1] == weight.num_columns, f"{x.shape[1]} columns for a weight of {weight.num_columns}"
    assert x.stride(1) == 1, f"rows with strides {x.stride()}"
    tiles = tiles_for(card.name, x.shape[0], x.dtype, deterministic=deterministic)
    work = Work(x.shape[0], weight.num_features, weight.num_steps)

    def launch(partial: torch.Tensor | None, num_splits: int, steps: int) -> KernelLaunch:
        return KernelLaunch(
            grouped_product_kernel,
            _grid(work, tiles, num_splits),
            arguments={
                "out": out,
                "partial": partial,
                "x": x,
                "codes": weight.codes,
                "scale": weight.scale,
                "offset": weight.offset,
                "bias": bias,
                "stride_x": x.stride(0),
                "stride_codes": weight.codes.shape[1],
                "num_rows": work.num_rows,
                "num_features": work.num_features,
                "num_columns": weight.num_columns,
                "num_steps": work.num_steps,
                "steps_per_split": steps,
                "steps_per_group": max(1, weight.steps_per_group),
            },
            constants={
                "BITS": weight.bits,
                "HALF": weight.half,
                "IS_PAIR_ALIKE": weight.steps_per_group > 0,
                "BLOCK_M": tiles.rows,
                "BLOCK_N": tiles.features,
            },
            num_warps=tiles.num_warps,
            num_stages=tiles.num_stages,
        )

    return _with_splits(launch, out, bias, card, work, tiles, deterministic=deterministic)


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
    num_columns, num_groups = weight.weight.shape[1], weight.scale.shape[1]
    assert codes.shape[1] == num_columns, f"{codes.shape[1]} columns for a weight of {num_columns}"
    assert codes.dtype == weight.weight.dtype, f"{codes.dtype} times {weight.weight.dtype}"
    assert row_scale.shape == (codes.shape[0], num_groups), f"scales {row_scale.shape} for {num_groups} groups"
    assert codes.is_contiguous(), f"codes with strides {codes.stride()}"
    step = _MAX_STEP if num_groups == 1 else math.gcd(weight.group_size, _MAX_STEP)
    tiles = tiles_for(card.name, codes.shape[0], codes.dtype, deterministic=deterministic)
    work = Work(codes.shape[0], weight.weight.shape[0], -(-num_columns // step))

    def launch(partial: torch.Tensor | None, num_splits: int, steps: int) -> KernelLaunch:
        return KernelLaunch(
            scaled_product_kernel,
            _grid(work, tiles, num_splits),
            arguments={
                "out": out,
                "partial": partial,
                "codes": codes,
                "row_scale": row_scale,
                "weight": weight.weight,
                "scale": weight.scale,
                "bias": bias,
                "num_rows": work.num_rows,
                "num_features": work.num_features,
                "num_columns": num_columns,
                "num_steps": work.num_steps,
                "steps_per_split": steps,
                "steps_per_group": max(1, weight.group_size // step),
                "num_groups": num_groups,
            },
            constants={
                "IS_GROUPED": num_groups > 1,
                "IS_INT": codes.dtype == torch.int8,
                "BLOCK_M": tiles.rows,
                "BLOCK_N": tiles.features,
                "BLOCK_K": step,
            },
            num_warps=tiles.num_warps,
            num_stages=tiles.num_stages,
        )

    return _with_splits(launch, out, bias, card, work, tiles, deterministic=deterministic)


def round_rows_launch(codes: torch.Tensor, row_scale: torch.Tensor, x: torch.Tensor, group_size: int) -> KernelLaunch:
    """What `round_rows` launches: codes [M, padded K], row_scale [M, groups], x [M, K]."""
    assert x.stride(1) == 1, f"rows with strides {x.stride()}"
    num_groups = row_scale.shape[1]
    return KernelLaunch(
        round_rows_kernel,
        (x.shape[0], num_groups),
        arguments={
            "codes": codes,
            "row_scale": row_scale,
            "x": x,
            "stride_x": x.stride(0),
            "stride_codes": codes.shape[1],
            "num_columns": x.shape[1],
            "group_size": group_size,
            "num_groups": num_groups,
        },
        constants={
            "LIMIT": _LIMITS[codes.dtype],
            "IS_INT": codes.dtype == torch.int8,
            "BLOCK": min(_ROUNDED_AT_ONCE, triton.next_power_of_2(group_size)),
        },
        num_warps=4,
        num_stages=1,
    )


def _grid(work: Work, tiles: Tiles, num_splits: int) -> tuple[int, int, int]:
    # Programs that run side by side read the same weights.
    return -(-work.num_rows // tiles.rows), -(-work.num_features // tiles.features), num_splits


def _with_splits(
    launch: Callable[[torch.Tensor | None, int, int], KernelLaunch],
    out: torch.Tensor,
    bias: torch.Tensor | None,
    card: Card,
    work: Work,
    tiles: Tiles,
    *,
    deterministic: bool,
) -> list[KernelLaunch]:
    """The product in as many splits as the card has room for, and what adds them up."""
    num_splits, steps = plan_splits(card, work, tiles, deterministic=deterministic)
    if num_splits == 1:
        return [launch(None, 1, steps)]
    partial = torch.empty(num_splits, *out.shape, dtype=torch.float32, device=out.device)
    add = KernelLaunch(
        add_splits_kernel,
        (work.num_rows, -(-work.num_features // _ADDED_AT_ONCE)),
        arguments={
            "out": out,
            "partial": partial,
            "bias": bias,
            "num_features": work.num_features,
            "num_splits": num_splits,
            "split_size": out.numel(),
        },
        constants={"BLOCK": _ADDED_AT_ONCE},
        num_warps=4,
        num_stages=1,
    )
    return [launch(partial, num_splits, steps), add]
