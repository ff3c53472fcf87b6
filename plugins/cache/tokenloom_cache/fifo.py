"""First in, first out: the block that was published first goes first, however often it was used since."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from tokenloom.interfaces.cache import CacheContext, EvictionConfig, EvictionKey, EvictionPolicy, Touch

__all__ = ["Fifo", "FifoConfig"]


class FifoConfig(EvictionConfig):
    """No settings."""

    def build(self, context: CacheContext) -> EvictionPolicy:
        return Fifo()


@final
class Fifo(EvictionPolicy):
    """The key is (tick of publication, -depth), and never changes; O(1) per use, one key kept for each indexed block.

    A baseline: it forgets a popular prefix as readily as any other. The head of a sequence that was computed in several
    steps is older than its tail and goes first, which wastes the tail; `cache=radix` keeps it until the tail is gone.
    """

    def __init__(self) -> None:
        self._keys: dict[int, EvictionKey] = {}

    def on_touch(self, touch: Touch) -> Iterable[tuple[int, EvictionKey]]:
        return ((touch.block_id, self._keys.setdefault(touch.block_id, (touch.tick, -touch.depth))),)

    def on_remove(self, block_id: int) -> None:
        self._keys.pop(block_id, None)
