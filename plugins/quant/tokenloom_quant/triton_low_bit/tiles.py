"""Sizes of tiles by card, and how far input features are split, as data. Nothing is tried out at run time.

No entry was timed on a card: each is a usual shape that compiles without spills in the card's shared memory, which
`benchmarks/triton_gate.py` holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from tokenloom.ops.triton_card import INTERPRETER, Card, has_e4m3

__all__ = [
    "MAX_FEATURES",
    "Tiles",
    "Work",
    "plan_splits",
    "tiles_for",
    "why_not_e4m3",
]

MAX_FEATURES = 128
"""Most features of a tile: packed weights have room for so many."""
_MAX_SPLITS = 16
_STEPS_OF_A_SPLIT = 4
"""Fewest: below that, adding partial results takes longer than the product."""


@final
@dataclass(frozen=True, slots=True)
class Tiles:
    """Shape of one program.

    Attributes:
        rows: rows of x, a power of two from 16 on.
        features: output features, a power of two up to `MAX_FEATURES`.
        num_warps: of 32 threads, on AMD of 64.
        num_stages: depth of the pipeline of loads.
    """

    rows: int
    features: int
    num_warps: int
    num_stages: int


@final
@dataclass(frozen=True, slots=True)
class Work:
    """One product: M rows, N features, K in so many steps."""

    num_rows: int
    num_features: int
    num_steps: int


_FEW = Tiles(16, 64, 4, 4)
_FEW_NARROW = Tiles(16, 32, 4, 3)  # 64 features spill 8 bytes on sm_80 and sm_100
_MANY = Tiles(128, 64, 8, 3)  # 128 features spill where each group has its own sums
_AMD_FEW = Tiles(16, 64, 4, 2)
_AMD_MANY = Tiles(64, 64, 4, 2)
_EXACT = Tiles(16, 32, 4, 1)
_INTERPRETED = Tiles(64, 128, 4, 1)
_MOST_FEW_ROWS = 32
_WIDE_ENOUGH = ("sm_90",)


def tiles_for(card: str, num_rows: int, dtype: torch.dtype, *, deterministic: bool) -> Tiles:
    """The tiles of a product.

    Args:
        card: name of a card.
        num_rows: M.
        dtype: of what is multiplied by weights: fp32 does without matrix units, to be exact.
        deterministic: the same tiles whatever M is.
    """
    if card == INTERPRETER:
        return _INTERPRETED
    if dtype == torch.float32:
        return _EXACT
    is_few = deterministic or num_rows <= _MOST_FEW_ROWS
    if card.startswith("gfx"):
        return _AMD_FEW if is_few else _AMD_MANY
    few = _FEW if card in _WIDE_ENOUGH else _FEW_NARROW
    return few if is_few else _MANY


def plan_splits(card: Card, work: Work, tiles: Tiles, *, deterministic: bool) -> tuple[int, int]:
    """(splits, steps of each but the last): so many that two programs run on each processor; none is empty.

    With `deterministic` they follow from the weight alone, so that a row is added up alike in any batch.
    """
    blocks = -(-work.num_features // tiles.features)
    if not deterministic:
        blocks *= -(-work.num_rows // tiles.rows)
    most = min(_MAX_SPLITS, work.num_steps // _STEPS_OF_A_SPLIT, 2 * card.num_processors // max(1, blocks))
    steps = -(-work.num_steps // max(1, most))
    return -(-work.num_steps // steps), steps


def why_not_e4m3(card: str) -> str | None:
    """What keeps products of 8-bit floats from a card, or None."""
    if has_e4m3(card):
        return None
    return f"products of 8-bit floats need a GPU with e4m3, from compute capability 8.9 on, got {card}"
