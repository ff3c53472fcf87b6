"""Segmented LRU: what was used only once goes before what was found again, each least recently used first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, final

from pydantic import Field

from tokenloom.interfaces.cache import CacheContext, EvictionConfig, EvictionKey, EvictionPolicy, Touch
from tokenloom_cache.keyed_heap import KeyedHeap

__all__ = ["Slru", "SlruConfig"]

_PROBATION, _PROTECTED = 0, 1


class SlruConfig(EvictionConfig):
    """Settings of `slru`."""

    protected_share: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        default=0.8, description="Share of the pool's blocks that the protected segment may hold."
    )

    def build(self, context: CacheContext) -> EvictionPolicy:
        return Slru(max(1, int(self.protected_share * (context.num_blocks - 1))))


@final
class Slru(EvictionPolicy):
    """The key is (segment, tick of the last touch, -depth). O(log n) per use, one key kept for each protected block.

    A published block is on probation; a hit protects it. When more than `max_protected` are, the least recently used of
    them goes back to probation, as the most recent there. A burst of prompts that nobody repeats passes through
    probation only, and leaves the shared prefixes alone.

    Source: Karedla, Love and Wherry, "Caching Strategies to Improve Disk System Performance" (IEEE Computer 27(3),
    1994).
    """

    def __init__(self, max_protected: int) -> None:
        self._max_protected = max_protected
        self._protected = KeyedHeap()

    def on_touch(self, touch: Touch) -> Iterable[tuple[int, EvictionKey]]:
        use = (touch.tick, -touch.depth)
        if not touch.is_hit and touch.block_id not in self._protected:
            return ((touch.block_id, (_PROBATION, *use)),)
        self._protected.put(touch.block_id, use)
        changed: dict[int, EvictionKey] = {touch.block_id: (_PROTECTED, *use)}
        while len(self._protected) > self._max_protected:
            oldest = self._protected.smallest()
            assert oldest is not None, f"{len(self._protected)} blocks are protected, but none is the oldest"
            (_, negative_depth), block_id = oldest
            self._protected.discard(block_id)
            changed[block_id] = (_PROBATION, touch.tick, negative_depth)
        return changed.items()

    def on_remove(self, block_id: int) -> None:
        self._protected.discard(block_id)
