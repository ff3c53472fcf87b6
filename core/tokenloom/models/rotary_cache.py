"""Cosines and sines of the rotary embedding for every position, computed once in fp32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from tokenloom.model_config import RopeConfig

__all__ = ["RotaryCache", "Rotation"]


@dataclass(frozen=True, slots=True)
class Rotation:
    """The angles of one step's tokens, as `OpTable.rotary` takes them: cos and signed_sin, each [T, 1, R]."""

    cos: torch.Tensor
    signed_sin: torch.Tensor


@final
class RotaryCache:
    """Tables of max_positions rows; about max_positions * R * 4 bytes."""

    def __init__(self, rope: RopeConfig, max_positions: int, device: torch.device) -> None:
        inv_freq = rope.inv_freq()  # [R / 2]
        positions = torch.arange(max_positions, dtype=torch.float32)
        angles = torch.outer(positions, inv_freq)  # [max_positions, R / 2]
        self._cos = angles.cos().to(device)
        self._sin = angles.sin().to(device)

    def lookup(self, positions: torch.Tensor, dtype: torch.dtype) -> Rotation:
        """The rotation of tokens at `positions` (int64 [T], below max_positions), rounded once to `dtype`."""
        cos = self._cos[positions].to(dtype)  # [T, R / 2]
        sin = self._sin[positions].to(dtype)
        return Rotation(torch.cat((cos, cos), -1).unsqueeze(1), torch.cat((-sin, sin), -1).unsqueeze(1))
