"""The heap of eviction candidates. The policy says keys, the index says who may go, the heap finds the smallest."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import final

from tokenloom.interfaces.cache import EvictionKey

__all__ = ["EvictionHeap"]


@final
class EvictionHeap:
    """A heap with lazy deletion: entries whose key is out of date, or whose block is in use, are dropped at pop.

    A push costs O(log n); the heap is rebuilt when stale entries outnumber live ones, so a pop is O(log n) amortised.
    """

    def __init__(self, is_candidate: Callable[[int], bool]) -> None:
        """`is_candidate(block_id)`: whether the block is unreferenced and may be evicted now."""
        self._is_candidate = is_candidate
        self._keys: dict[int, EvictionKey] = {}
        self._heap: list[tuple[EvictionKey, int]] = []

    def update(self, changed: Iterable[tuple[int, EvictionKey]]) -> None:
        """Records new keys and offers those blocks that are candidates."""
        for block_id, key in changed:
            self._keys[block_id] = key
            self.offer(block_id)

    def offer(self, block_id: int) -> None:
        """Enters a block that has just become a candidate, under its last key."""
        key = self._keys.get(block_id)
        if key is not None and self._is_candidate(block_id):
            heapq.heappush(self._heap, (key, block_id))
            if len(self._heap) > 64 + 4 * len(self._keys):
                self._rebuild()

    def forget(self, block_id: int) -> None:
        """Drops a block that is no longer indexed."""
        self._keys.pop(block_id, None)

    def pop(self) -> int | None:
        """Takes out the candidate with the smallest key; None if there is none."""
        while self._heap:
            key, block_id = heapq.heappop(self._heap)
            if self._keys.get(block_id) == key and self._is_candidate(block_id):
                return block_id
        return None

    def _rebuild(self) -> None:
        self._heap = [(key, block_id) for block_id, key in self._keys.items() if self._is_candidate(block_id)]
        heapq.heapify(self._heap)
