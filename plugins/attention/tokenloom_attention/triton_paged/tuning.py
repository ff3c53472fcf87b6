"""Sizes of tiles by card and head size, as data: what was chosen, and why. Nothing is tried out at run time.

No entry was timed on a card. Of the shapes that were compiled, each is the widest without spills, with every mask that
a layer can ask for and every kind of cache, in the card's shared memory; `benchmarks/triton_gate.py` holds that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import torch

from tokenloom.ops.triton_card import INTERPRETER

__all__ = ["ARCHITECTURES", "Tiles", "Tuning", "tuning_for"]


@final
@dataclass(frozen=True, slots=True)
class Tiles:
    """Shape of one program.

    Attributes:
        rows: query rows, new tokens x query heads of a KV head; a power of two from 16 on.
        keys: keys a tile; a power of two from 16 on.
        num_warps: of 32 threads, on AMD of 64.
        num_stages: depth of the pipeline of loads. A paged tile's address is loaded itself, which takes one more.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int


@final
@dataclass(frozen=True, slots=True)
class Tuning:
    """The tiles of one card for one size of heads.

    Attributes:
        few: where no request has more than `few.rows` rows: decode and verification. Steps with fewer rows take fewer.
        many: for prompts and chunks, from pages.
        whole: for prompts from contiguous keys and values (`triton_flash`).
        reason: why these.
        fewest: fewest rows of a tile.
    """

    few: Tiles
    many: Tiles
    whole: Tiles
    reason: str
    fewest: int = 16


_HOPPER: Mapping[int, Tuning] = {
    64: Tuning(
        few=Tiles(64, 64, 4, 5),
        many=Tiles(128, 64, 8, 5),
        whole=Tiles(128, 128, 8, 3),
        reason="64 rows a warp group is wgmma's shape; two tiles of keys in flight beside the one that is multiplied; "
        "for 16 rows the compiler is content with 128 registers, and spills, for 32 Triton 3.6 spills with e4m3",
        fewest=64,
    ),
    128: Tuning(
        few=Tiles(32, 64, 4, 5),
        many=Tiles(128, 64, 8, 5),
        whole=Tiles(128, 64, 8, 3),
        reason="as above; 128 keys spill with a window, a soft cap and padding; 64 and 16 rows spill in Triton 3.6 "
        "with quantized caches",
        fewest=32,
    ),
    256: Tuning(
        few=Tiles(32, 32, 4, 3),
        many=Tiles(64, 16, 8, 3),
        whole=Tiles(128, 32, 8, 2),
        reason="results take 64 to 128 registers, so tiles of keys are small; 32 keys spill with an e4m3 cache, and in "
        "Triton 3.6 16 rows and a third stage of `whole`",
        fewest=32,
    ),
}

_BLACKWELL: Mapping[int, Tuning] = {
    **_HOPPER,
    64: replace(_HOPPER[64], reason="as on sm_90, and 32 rows spill with an e4m3 cache"),
    128: replace(
        _HOPPER[128],
        reason="results come back from tensor memory into registers: 64 rows spill with int8, 16 with e4m3",
    ),
    256: replace(
        _HOPPER[256],
        many=Tiles(64, 32, 8, 2),
        whole=Tiles(128, 32, 8, 3),
        reason="tiles of keys are small, as on sm_90; in Triton 3.6 16 rows spill, and so does a third stage of `many`",
        fewest=32,
    ),
}

_AMPERE: Mapping[int, Tuning] = {
    64: Tuning(
        few=Tiles(64, 64, 4, 3),
        many=Tiles(128, 64, 8, 3),
        whole=Tiles(128, 64, 8, 3),
        reason="mma.sync takes its operands from registers, which are full with 64 keys",
    ),
    128: Tuning(
        few=Tiles(32, 64, 4, 3),
        many=Tiles(128, 32, 8, 3),
        whole=Tiles(128, 32, 8, 3),
        reason="128 rows and 64 keys spill, and so do 16 rows, for which the compiler is content with 128 registers",
        fewest=32,
    ),
    256: Tuning(
        few=Tiles(32, 32, 4, 3),
        many=Tiles(32, 16, 4, 3),
        whole=Tiles(64, 32, 8, 2),
        reason="64 rows spill with an int8 cache (with 16 keys in Triton 3.6), 16 rows in trees with a window and a "
        "soft cap; a third stage of `whole` would not fit into 99 KB",
        fewest=32,
    ),
}

_ADA: Mapping[int, Tuning] = {
    **_AMPERE,
    128: replace(
        _AMPERE[128],
        few=Tiles(32, 32, 4, 3),
        many=Tiles(64, 32, 8, 3),
        reason="what sm_80 has spills some bytes here",
    ),
}

_CDNA3: Mapping[int, Tuning] = {
    64: Tuning(
        few=Tiles(64, 64, 4, 2),
        many=Tiles(128, 32, 4, 2),
        whole=Tiles(128, 64, 8, 2),
        reason="8 warps of 64 threads have 256 registers each, too few for an int8 cache; two stages fit in 64 KB",
    ),
    128: Tuning(
        few=Tiles(32, 32, 4, 2),
        many=Tiles(128, 32, 4, 2),
        whole=Tiles(128, 32, 8, 2),
        reason="as above",
    ),
    256: Tuning(
        few=Tiles(32, 32, 4, 2),
        many=Tiles(64, 16, 4, 2),
        whole=Tiles(64, 16, 8, 2),
        reason="as above; 64 rows leave room for 16 keys only, and 32 spill with a window and sinks",
    ),
}

_EXACT = Tuning(
    few=Tiles(16, 16, 8, 1),
    many=Tiles(16, 16, 8, 1),
    whole=Tiles(16, 16, 8, 1),
    reason="float32 is multiplied without matrix units, to be exact: small tiles, as operands lie in registers too",
)

_INTERPRETED = Tuning(
    few=Tiles(64, 128, 4, 1),
    many=Tiles(128, 256, 4, 1),
    whole=Tiles(128, 256, 4, 1),
    reason="few programs, as the interpreter takes its time for each",
)

ARCHITECTURES: Mapping[str, Mapping[int, Tuning]] = {
    "sm_80": _AMPERE,
    "sm_86": _ADA,
    "sm_89": _ADA,
    "sm_90": _HOPPER,
    "sm_100": _BLACKWELL,
    "sm_103": _BLACKWELL,
    "sm_120": _ADA,
    "gfx942": _CDNA3,
    "gfx950": _CDNA3,
}
"""Tiles of float16 and bfloat16, by architecture and the largest head size that they are for."""


def tuning_for(architecture: str, head_dim: int, dtype: torch.dtype) -> Tuning:
    """The tiles for heads of a size on an architecture of `ARCHITECTURES`, or in the interpreter."""
    if architecture == INTERPRETER:
        return _INTERPRETED
    if dtype == torch.float32:
        return _EXACT
    row = ARCHITECTURES[architecture]
    return row[next(size for size in row if head_dim <= size)]
