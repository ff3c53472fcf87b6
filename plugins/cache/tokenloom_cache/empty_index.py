"""What caches without an index have in common: nothing is found, nothing is kept, nothing is evicted."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import final

from tokenloom.interfaces.cache import BlockKey, EvictionKey, EvictionPolicy, PrefixCache, Reservation, Touch
from tokenloom.request import RequestView

__all__ = ["EmptyIndex"]


class EmptyIndex(PrefixCache):
    """A cache that stores no prefixes; how memory is reserved is left to say."""

    def __init__(self) -> None:
        self._policy = _NothingToEvict()

    @property
    def stores_prefixes(self) -> bool:
        return False

    def match(self, keys: Sequence[BlockKey], window_blocks: int | None = None) -> list[int]:
        return []

    def insert(self, keys: Sequence[BlockKey], index: int, block_id: int) -> bool:
        return False

    def remove(self, block_id: int) -> Iterable[int]:
        raise AssertionError(f"block {block_id} was never indexed")

    def is_evictable(self, block_id: int) -> bool:
        return False

    def __contains__(self, block_id: object) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    @abstractmethod
    def reservation(self, request: RequestView) -> Reservation: ...

    def eviction_policy(self) -> EvictionPolicy:
        return self._policy


@final
class _NothingToEvict(EvictionPolicy):
    """Is never asked, as nothing is indexed."""

    def on_touch(self, touch: Touch) -> Iterable[tuple[int, EvictionKey]]:
        return ()

    def on_remove(self, block_id: int) -> None:
        """Nothing to forget."""
