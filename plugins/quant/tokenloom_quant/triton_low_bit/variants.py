"""The kernels of `triton_low_bit` that a card runs, as launches without memory; `triton_gate.py` compiles them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import torch

from tokenloom.ops.kernel_launch import KernelLaunch, KernelVariant
from tokenloom.ops.triton_card import Card
from tokenloom_quant.triton_low_bit.launches import grouped_launches, round_rows_launch, scaled_launches
from tokenloom_quant.triton_low_bit.packing import PackedCodes, PackedEightBits
from tokenloom_quant.triton_low_bit.tiles import why_not_e4m3

__all__ = ["low_bit_variants"]

_NUM_FEATURES, _NUM_COLUMNS = 4096, 4096
_ROWS = {"few rows": 8, "many rows": 512}
_NUM_PROCESSORS = 132
_CODES: Sequence[tuple[Literal[4, 8], int, bool]] = (
    (4, 128, False),
    (4, 128, True),
    (4, 32, True),
    (8, 128, True),
    (8, 0, False),
)
"""Bits, size of groups (0 for one group) and whether there are minima."""


def low_bit_variants(card: str) -> Iterator[KernelVariant]:
    """The kernels for a card of `tokenloom.testing.kernel_gate`, for few rows and for many."""
    for kind, num_rows in _ROWS.items():
        for bits, group_size, has_offset in _CODES:
            launches = _grouped(card, num_rows, bits, group_size, torch.bfloat16, has_offset=has_offset)
            name = f"W{bits}A16, {kind}, groups of {group_size or 'all'}{', minima' if has_offset else ''}"
            yield KernelVariant(name, launches[0], True, num_rows > 64)
            if has_offset and group_size == 128 and num_rows == 8:
                yield from (KernelVariant(f"{name}, sum of splits", launch) for launch in launches[1:])
        for dtype in (torch.int8,) if why_not_e4m3(card) else (torch.int8, torch.float8_e4m3fn):
            for group_size in (0, 128):
                launches = _scaled(card, num_rows, group_size, dtype)
                name = f"8 bits times 8 bits, {kind}, groups of {group_size or 'all'}, {_name(dtype)}"
                yield KernelVariant(name, launches[0], True, num_rows > 64)
                yield KernelVariant(f"rounding, {name}", _rounding(num_rows, group_size, dtype))
    yield KernelVariant("W4A16, float32", _grouped(card, 8, 4, 128, torch.float32, has_offset=True)[0])


def _grouped(
    card: str, num_rows: int, bits: Literal[4, 8], group_size: int, dtype: torch.dtype, *, has_offset: bool
) -> list[KernelLaunch]:
    half = min(64, group_size or 64)
    step = half if bits == 8 else 2 * half
    has_own_halves = bits == 4 and 0 < group_size < step
    num_groups = _NUM_COLUMNS // group_size if group_size else 1
    scale = _empty(torch.float32, num_groups, _NUM_FEATURES)
    weight = PackedCodes(
        codes=_empty(torch.uint8, _NUM_COLUMNS * bits // 8, _NUM_FEATURES),
        scale=scale,
        offset=scale if has_offset else None,
        bits=bits,
        half=half,
        steps_per_group=0 if has_own_halves else (group_size or _NUM_COLUMNS) // step,
        num_features=_NUM_FEATURES,
        num_columns=_NUM_COLUMNS,
    )
    out, x = _empty(dtype, num_rows, _NUM_FEATURES), _empty(dtype, num_rows, _NUM_COLUMNS)
    return grouped_launches(out, x, weight, None, Card(card, _NUM_PROCESSORS), deterministic=False)


def _scaled(card: str, num_rows: int, group_size: int, dtype: torch.dtype) -> list[KernelLaunch]:
    num_groups = _NUM_COLUMNS // group_size if group_size else 1
    weight = PackedEightBits(
        weight=_empty(dtype, _NUM_FEATURES, _NUM_COLUMNS),
        scale=_empty(torch.float32, _NUM_FEATURES, num_groups),
        group_size=group_size or _NUM_COLUMNS,
        num_columns=_NUM_COLUMNS,
    )
    codes, row_scale = _empty(dtype, num_rows, _NUM_COLUMNS), _empty(torch.float32, num_rows, num_groups)
    out, bias = _empty(torch.bfloat16, num_rows, _NUM_FEATURES), _empty(torch.bfloat16, _NUM_FEATURES)
    return scaled_launches(out, codes, row_scale, weight, bias, Card(card, _NUM_PROCESSORS), deterministic=False)


def _rounding(num_rows: int, group_size: int, dtype: torch.dtype) -> KernelLaunch:
    codes = _empty(dtype, num_rows, _NUM_COLUMNS)
    row_scale = _empty(torch.float32, num_rows, _NUM_COLUMNS // group_size if group_size else 1)
    x = _empty(torch.bfloat16, num_rows, _NUM_COLUMNS)
    return round_rows_launch(codes, row_scale, x, group_size or _NUM_COLUMNS)


def _empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
