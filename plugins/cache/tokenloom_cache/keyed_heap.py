"""Blocks by a number that changes, with the smallest at hand: what a policy keeps beside the core's heap."""

from __future__ import annotations

import heapq
from typing import final

__all__ = ["KeyedHeap"]

_Key = tuple[float, ...]


@final
class KeyedHeap:
    """A heap in which a block's key can be replaced: O(log n) amortised, memory in proportion to its blocks.

    An old entry stays where it is and is passed over; the heap is rebuilt when these are in the majority.
    """

    def __init__(self) -> None:
        self._keys: dict[int, _Key] = {}
        self._heap: list[tuple[_Key, int]] = []

    def __contains__(self, block_id: object) -> bool:
        return block_id in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def put(self, block_id: int, key: _Key) -> None:
        """Enters a block, or changes its key."""
        if self._keys.get(block_id) != key:
            self._keys[block_id] = key
            heapq.heappush(self._heap, (key, block_id))
            self._tidy()

    def discard(self, block_id: int) -> None:
        """Takes a block out, if it is in."""
        if self._keys.pop(block_id, None) is not None:
            self._tidy()

    def smallest(self) -> tuple[_Key, int] | None:
        """The smallest key and its block; of equal keys the smaller id. None if it is empty."""
        while self._heap:
            key, block_id = self._heap[0]
            if self._keys.get(block_id) == key:
                return key, block_id
            heapq.heappop(self._heap)
        return None

    def _tidy(self) -> None:
        if len(self._heap) > 64 + 2 * len(self._keys):
            self._heap = [(key, block_id) for block_id, key in self._keys.items()]
            heapq.heapify(self._heap)
