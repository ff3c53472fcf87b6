"""The eviction policy of caches that index nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from tokenloom.interfaces.cache import EvictionKey, EvictionPolicy, Touch

__all__ = ["NothingToEvict"]


@final
class NothingToEvict(EvictionPolicy):
    """Is never asked, as nothing is indexed."""

    def on_touch(self, touch: Touch) -> Iterable[tuple[int, EvictionKey]]:
        return ()

    def on_remove(self, block_id: int) -> None:
        """Nothing to forget."""
