"""The launches of products with packed weights, without tensors: made once for all layers and steps of the same sizes.

Looking sizes of tiles up and putting a launch together takes the host longer than a GPU takes for a short decode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
import triton

from tokenloom.ops.kernel_launch import KernelLaunch
from tokenloom.ops.triton_card import Card
from tokenloom_quant.triton_low_bit.kernels import (
    add_splits_kernel,
    grouped_product_kernel,
    round_rows_kernel,
    scaled_product_kernel,
)
from tokenloom_quant.triton_low_bit.packing import CodesForm
from tokenloom_quant.triton_low_bit.tiles import Work, plan_splits, tiles_for

__all__ = ["grouped_kernels", "rounding_kernel", "scaled_kernels"]

_LIMITS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
_ROUNDED_AT_ONCE = 4096
_ADDED_AT_ONCE = 512
_MAX_STEP = 128  # columns of a step of 8 bits times 8 bits
_MOST_KEPT = 4096  # launches: prompts come in many lengths


@lru_cache(_MOST_KEPT)
def grouped_kernels(
    card: Card, num_rows: int, stride_x: int, dtype: torch.dtype, form: CodesForm, deterministic: bool
) -> tuple[KernelLaunch, ...]:
    """Of rows of `dtype`, without tensors."""
    return _product_kernels(
        grouped_product_kernel,
        card,
        Work(num_rows, form.num_features, form.num_steps),
        dtype,
        arguments={
            "stride_x": stride_x,
            "stride_codes": form.stride,
            "num_columns": form.num_columns,
            "steps_per_group": max(1, form.steps_per_group),
        },
        constants={"BITS": form.bits, "HALF": form.half, "IS_PAIR_ALIKE": form.steps_per_group > 0},
        deterministic=deterministic,
    )


@lru_cache(_MOST_KEPT)
def scaled_kernels(
    card: Card, sizes: tuple[int, int, int, int, int], dtype: torch.dtype, deterministic: bool
) -> tuple[KernelLaunch, ...]:
    """Of (rows, features, padded columns, groups, columns of a group), both operands of `dtype`, without tensors."""
    num_rows, num_features, num_columns, num_groups, group_size = sizes
    step = _MAX_STEP if num_groups == 1 else math.gcd(group_size, _MAX_STEP)
    return _product_kernels(
        scaled_product_kernel,
        card,
        Work(num_rows, num_features, -(-num_columns // step)),
        dtype,
        arguments={
            "num_columns": num_columns,
            "steps_per_group": max(1, group_size // step),
            "num_groups": num_groups,
        },
        constants={"IS_GROUPED": num_groups > 1, "IS_INT": dtype == torch.int8, "BLOCK_K": step},
        deterministic=deterministic,
    )


@lru_cache(_MOST_KEPT)
def rounding_kernel(sizes: tuple[int, ...], stride_x: int, dtype: torch.dtype) -> KernelLaunch:
    """Of (rows, columns, padded columns, groups, columns of a group), to `dtype`, without tensors."""
    num_rows, num_columns, stride_codes, num_groups, group_size = sizes
    return KernelLaunch(
        round_rows_kernel,
        (num_rows, num_groups),
        arguments={
            "stride_x": stride_x,
            "stride_codes": stride_codes,
            "num_columns": num_columns,
            "group_size": group_size,
            "num_groups": num_groups,
        },
        constants={
            "LIMIT": _LIMITS[dtype],
            "IS_INT": dtype == torch.int8,
            "BLOCK": min(_ROUNDED_AT_ONCE, triton.next_power_of_2(group_size)),
        },
        num_warps=4,
        num_stages=1,
    )


def _product_kernels(
    kernel: Any,
    card: Card,
    work: Work,
    dtype: torch.dtype,
    *,
    arguments: Mapping[str, int],
    constants: Mapping[str, int],
    deterministic: bool,
) -> tuple[KernelLaunch, ...]:
    """A product's launch, and that which adds up its splits where it has some; `arguments` and `constants` are those
    that only this product has."""
    tiles = tiles_for(card.name, work.num_rows, dtype, deterministic=deterministic)
    num_splits, steps = plan_splits(card, work, tiles, deterministic=deterministic)
    # Programs that run side by side read the same weights.
    grid = (-(-work.num_rows // tiles.rows), -(-work.num_features // tiles.features), num_splits)
    product = KernelLaunch(
        kernel,
        grid,
        arguments={
            "num_rows": work.num_rows,
            "num_features": work.num_features,
            "num_steps": work.num_steps,
            "steps_per_split": steps,
            **arguments,
        },
        constants={"BLOCK_M": tiles.rows, "BLOCK_N": tiles.features, **constants},
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
    )
    return (product,) if num_splits == 1 else (product, _adding_kernel(work, num_splits))


def _adding_kernel(work: Work, num_splits: int) -> KernelLaunch:
    """Adds up the partial results of the splits, without tensors."""
    return KernelLaunch(
        add_splits_kernel,
        (work.num_rows, -(-work.num_features // _ADDED_AT_ONCE)),
        arguments={
            "num_features": work.num_features,
            "num_splits": num_splits,
            "split_size": work.num_rows * work.num_features,
        },
        constants={"BLOCK": _ADDED_AT_ONCE},
        num_warps=4,
        num_stages=1,
    )
