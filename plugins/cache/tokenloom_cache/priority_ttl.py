"""Lowest retention priority first, then least recently used; a priority ends when its time to live has passed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import final

from tokenloom.interfaces.cache import CacheContext, EvictionConfig, EvictionKey, EvictionPolicy, Touch
from tokenloom_cache.keyed_heap import KeyedHeap

__all__ = ["PriorityTtl", "PriorityTtlConfig"]

_MAX_PROMISES = 8

_Promises = tuple[tuple[int, float], ...]
"""(priority, end in seconds) in falling priority and rising end: each takes over where the one before it ends."""


class PriorityTtlConfig(EvictionConfig):
    """No settings; requests carry retention_priority and retention_ttl_s."""

    def build(self, context: CacheContext) -> EvictionPolicy:
        return PriorityTtl()


@final
class PriorityTtl(EvictionPolicy):
    """The key is (retention priority in force, tick of the last touch, -depth).

    Each touch is a promise by its request: its priority, for its time to live from now on. The largest promise that has
    not ended is in force, so that a request without priority does not strip a shared prefix of what another asked for;
    when it ends the next one takes over, and after the last the priority is 0. A negative priority goes before all.

    O(log n) per use and per end of a promise. Kept are the promises that no other outdoes: 8 at most for a block, of
    which the lowest is given up first.

    Source: the retention priorities of TensorRT-LLM's KV cache manager (KvCacheRetentionConfig).
    """

    def __init__(self) -> None:
        self._promises: dict[int, _Promises] = {}
        self._last_use: dict[int, tuple[int, int]] = {}
        self._ends = KeyedHeap()

    def on_touch(self, touch: Touch) -> Iterable[tuple[int, EvictionKey]]:
        lifetime_s = math.inf if touch.retention_ttl_s is None else touch.retention_ttl_s
        promises = _with_promise(
            self._promises.get(touch.block_id, ()), touch.retention_priority, touch.now_s + lifetime_s
        )
        self._last_use[touch.block_id] = (touch.tick, -touch.depth)
        return (self._restate(touch.block_id, promises, touch.now_s),)

    def on_remove(self, block_id: int) -> None:
        self._promises.pop(block_id, None)
        self._last_use.pop(block_id, None)
        self._ends.discard(block_id)

    def refresh(self, now_s: float) -> Iterable[tuple[int, EvictionKey]]:
        changed: list[tuple[int, EvictionKey]] = []
        while (first := self._ends.smallest()) is not None and first[0][0] <= now_s:
            block_id = first[1]
            changed.append(self._restate(block_id, self._promises[block_id], now_s))
        return changed

    def _restate(self, block_id: int, promises: _Promises, now_s: float) -> tuple[int, EvictionKey]:
        """Keeps the promises that have not ended, and returns the block with its key."""
        promises = tuple(promise for promise in promises if promise[1] > now_s)
        self._promises[block_id] = promises
        if promises and promises[0][1] < math.inf:
            self._ends.put(block_id, (promises[0][1],))
        else:
            self._ends.discard(block_id)
        return block_id, (promises[0][0] if promises else 0, *self._last_use[block_id])


def _with_promise(promises: _Promises, priority: int, end_s: float) -> _Promises:
    """Adds a promise, and drops those that end no later and are no higher than another."""
    if any(other >= priority and other_end_s >= end_s for other, other_end_s in promises):
        return promises
    kept = [promise for promise in promises if promise[0] > priority or promise[1] > end_s]
    return tuple(sorted([*kept, (priority, end_s)], reverse=True)[:_MAX_PROMISES])
