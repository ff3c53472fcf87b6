"""Least frequently used first; with a half-life, old uses count for less than new ones."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, final

from pydantic import Field

from tokenloom.interfaces.cache import CacheContext, EvictionConfig, EvictionKey, EvictionPolicy, Touch

__all__ = ["Lfu", "LfuConfig"]


class LfuConfig(EvictionConfig):
    """Settings of `lfu`."""

    half_life_s: Annotated[float, Field(ge=0.001)] | None = Field(
        default=None, description="Seconds after which a use counts half; null counts all uses alike, for ever."
    )

    def build(self, context: CacheContext) -> EvictionPolicy:
        return Lfu(self.half_life_s)


@final
class Lfu(EvictionPolicy):
    """The key is (uses, tick of the last touch, -depth): of equally frequent blocks the least recently used one goes.

    Uses are the publication and each hit; a release is none. O(1) per use, one number kept for each indexed block.

    Without a half-life a block that was popular once is kept for as long as there are others. With one, a use at time
    t is worth 2^(t / half-life) instead of 1. All worths fall behind at the same pace, so an order that was right stays
    right and no key changes by time alone; kept are the sums' logarithms, which do not overflow.

    Source: Lee et al., "LRFU: A Spectrum of Policies that Subsumes the Least Recently Used and Least Frequently Used
    Policies" (IEEE Transactions on Computers 50(12), 2001): the half-life is 1/lambda; none is LFU.
    """

    def __init__(self, half_life_s: float | None) -> None:
        self._half_life_s = half_life_s
        self._uses: dict[int, float] = {}

    def on_touch(self, touch: Touch) -> Iterable[tuple[int, EvictionKey]]:
        uses = self._uses.get(touch.block_id)
        if uses is None or touch.is_hit:
            uses = self._with_one_more(uses, touch.now_s)
            self._uses[touch.block_id] = uses
        return ((touch.block_id, (uses, touch.tick, -touch.depth)),)

    def on_remove(self, block_id: int) -> None:
        self._uses.pop(block_id, None)

    def _with_one_more(self, uses: float | None, now_s: float) -> float:
        """The count of uses after one now; with a half-life its logarithm to base 2."""
        if self._half_life_s is None:
            return 1.0 if uses is None else uses + 1.0
        now = now_s / self._half_life_s
        if uses is None:
            return now
        return max(uses, now) + math.log2(1.0 + 2.0 ** -abs(uses - now))
