"""Rounding to nearest: no text is run, each group's grid reaches from its least weight to its largest."""

from __future__ import annotations

from typing import final

from tokenloom.quantization.method import LinearToRound, RoundedLinear, RoundingMethod
from tokenloom.quantization.rounded_weight import round_to_nearest

__all__ = ["RoundToNearest"]


@final
class RoundToNearest(RoundingMethod):
    """What every other method is measured by."""

    @property
    def title(self) -> str:
        return "RTN (rounding to nearest)"

    @property
    def needs_inputs(self) -> bool:
        return False

    @property
    def needs_gram(self) -> bool:
        return False

    def round(self, layer: LinearToRound) -> RoundedLinear:
        return RoundedLinear(round_to_nearest(layer.weight, layer.scheme))
