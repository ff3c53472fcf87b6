"""Cosines and sines of the rotary embedding for every position, computed once in fp32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from tokenloom.model_config import RopeConfig

__all__ = ["RotaryCache", "Rotation", "RotationTables"]


@dataclass(frozen=True, slots=True)
class Rotation:
    """The angles of one step's tokens, as `OpTable.rotary` takes them: cos and signed_sin, each [T, 1, R]."""

    cos: torch.Tensor
    signed_sin: torch.Tensor


@final
class RotaryCache:
    """Tables of max_positions rows, in `dtype` and laid out as they are used: a step only picks rows."""

    def __init__(self, rope: RopeConfig, max_positions: int, device: torch.device, dtype: torch.dtype) -> None:
        inv_freq = rope.inv_freq()  # [R / 2]
        positions = torch.arange(max_positions, dtype=torch.float32)
        angles = torch.outer(positions, inv_freq)  # [max_positions, R / 2]
        cos, sin = ((table * rope.amplitude).to(dtype) for table in (angles.cos(), angles.sin()))
        self._cos = torch.cat((cos, cos), -1).unsqueeze(1).to(device)  # [max_positions, 1, R]
        self._signed_sin = torch.cat((-sin, sin), -1).unsqueeze(1).to(device)

    def lookup(self, positions: torch.Tensor) -> Rotation:
        """The rotation of tokens at `positions` (int64 [T], below max_positions), rounded once to the dtype."""
        return Rotation(self._cos[positions], self._signed_sin[positions])


@final
class RotationTables:
    """The rotary caches of a stack of layers: one for all layers of equal rope, looked up once per forward pass.

    Args:
        ropes: of each layer, None where a layer has none.
        max_len: the longest sequence of the engine, tokens; sizes the tables, and decides what LongRoPE means.
        dtype: of queries and keys.
        device: where positions come from.
    """

    def __init__(
        self, ropes: Sequence[RopeConfig | None], max_len: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        distinct = dict.fromkeys(rope.for_length(max_len) for rope in ropes if rope is not None)
        numbers = {rope: number for number, rope in enumerate(distinct)}
        self._caches = tuple(RotaryCache(rope, max_len, device, dtype) for rope in distinct)
        self._number_of_layer = tuple(None if rope is None else numbers[rope.for_length(max_len)] for rope in ropes)

    def lookup(self, positions: torch.Tensor) -> tuple[Rotation | None, ...]:
        """The rotation of each layer for tokens at `positions` (int64 [T]); equal ropes share one object."""
        rotations = tuple(cache.lookup(positions) for cache in self._caches)
        return tuple(None if number is None else rotations[number] for number in self._number_of_layer)
