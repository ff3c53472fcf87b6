"""Least recently used first; among blocks used by the same commit, the deepest of a sequence first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from tokenloom.interfaces.cache import CacheContext, EvictionConfig, EvictionKey, EvictionPolicy, Touch

__all__ = ["Lru", "LruConfig"]


class LruConfig(EvictionConfig):
    """No settings."""

    def build(self, context: CacheContext) -> EvictionPolicy:
        return Lru()


@final
class Lru(EvictionPolicy):
    """The key is (tick of the last use, -depth)."""

    def on_touch(self, touch: Touch) -> Iterable[tuple[int, EvictionKey]]:
        return ((touch.block_id, (touch.tick, -touch.depth)),)

    def on_remove(self, block_id: int) -> None:
        """Keeps no state."""
