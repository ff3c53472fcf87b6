"""One page size's memory: the block pool, the prefix index over it and the eviction heap, kept consistent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tokenloom.errors import PluginContractError
from tokenloom.interfaces.cache import BlockKey, PrefixCache, Touch
from tokenloom.kv.block_pool import NULL_BLOCK, BlockPool, BlockState
from tokenloom.kv.eviction_heap import EvictionHeap
from tokenloom.plugin_guard import plugin_call
from tokenloom.request import Request

__all__ = ["KVPool"]


@final
class KVPool:
    """Blocks of one page size with their index. Ids given out are held by the caller until released."""

    def __init__(self, num_blocks: int, cache: PrefixCache, plugin: str = "cache") -> None:
        """`plugin` names the cache in errors."""
        self._plugin = plugin
        self.blocks = BlockPool(num_blocks, in_runs=cache.reserves_runs)
        self.cache = cache
        self._policy = cache.eviction_policy()
        self._heap = EvictionHeap(self._is_candidate)
        self._tick = 0
        self._leaving: list[tuple[int, int, Request]] = []
        self._exporting: set[int] = set()
        self.num_evicted = 0

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated: free, or cached and unreferenced."""
        return self.blocks.count(BlockState.FREE) + self.blocks.count(BlockState.CACHED)

    def next_tick(self) -> None:
        """Starts a new commit: later touches count as more recent."""
        self._tick += 1

    def match(self, keys: Sequence[BlockKey], window_blocks: int | None) -> list[int]:
        """The index's longest usable prefix, as ids of indexed blocks (0 where the window does not reach)."""
        with plugin_call(self._plugin, "match() returns indexed blocks"):
            found = self.cache.match(keys, window_blocks)
            is_legal = len(found) <= len(keys) and all(i == NULL_BLOCK or i in self.cache for i in found)
        if not is_legal:
            raise PluginContractError(self._plugin, "match() returns indexed blocks", f"{found} for {len(keys)} keys")
        return found

    def allocate(self, count: int, now_s: float) -> list[int]:
        """Takes `count` blocks, evicting cached ones as needed. The caller has checked `num_available`."""
        if self.blocks.num_free < count:
            self._heap.update(self._policy.refresh(now_s))
        ids: list[int] = []
        for _ in range(count):
            if not self.blocks.num_free:
                self._evict()
            ids.append(self.blocks.allocate())
        return ids

    def acquire(self, block_ids: Sequence[int], request: Request, now_s: float) -> None:
        """Pins the leading blocks that a request found in the index."""
        for depth, block_id in enumerate(block_ids):
            if block_id != NULL_BLOCK:
                self.blocks.acquire(block_id)
                self._touch(block_id, depth, request, now_s, is_hit=True)

    def publish(self, keys: Sequence[BlockKey], index: int, block_id: int, request: Request, now_s: float) -> None:
        """Indexes a computed block that a request holds under keys[index], unless that key is indexed already."""
        assert self.blocks.ref_count(block_id) > 0, f"block {block_id} published without a holder"
        with plugin_call(self._plugin, "insert() takes every computed block"):
            is_indexed = self.cache.insert(keys, index, block_id)
        if is_indexed:
            self._touch(block_id, index, request, now_s, is_hit=False)

    def publish_from(
        self, first: int, keys: Sequence[BlockKey], table: Sequence[int], request: Request, now_s: float
    ) -> None:
        """Publishes a request's blocks from index `first` on, as many as there are keys."""
        for index in range(first, len(keys)):
            if table[index] != NULL_BLOCK:
                self.publish(keys, index, table[index], request, now_s)

    def fill(self, table: list[int], indices: Sequence[int], now_s: float) -> None:
        """Allocates those entries of a table that hold no block yet."""
        missing = [index for index in indices if table[index] == NULL_BLOCK]
        for index, block_id in zip(missing, self.allocate(len(missing), now_s) if missing else (), strict=True):
            table[index] = block_id

    def release_leading(self, table: list[int], count: int, request: Request, now_s: float) -> None:
        """Gives the first `count` blocks of a table back, and puts the null block in their place."""
        for index in range(count - 1, -1, -1):
            if table[index] == NULL_BLOCK:
                break
            self.release_one(table[index], index, request, now_s)
            table[index] = NULL_BLOCK

    def release(self, block_ids: Sequence[int], request: Request, now_s: float, first: int = 0) -> None:
        """Gives a request's blocks back from index `first` on, the last ones first."""
        for depth in range(len(block_ids) - 1, first - 1, -1):
            if block_ids[depth] != NULL_BLOCK:
                self.release_one(block_ids[depth], depth, request, now_s)

    def release_one(self, block_id: int, depth: int, request: Request, now_s: float) -> None:
        """Gives one block back; it stays cached if it is indexed. While it is copied elsewhere it is not available."""
        if block_id in self._exporting:
            if self.blocks.release_for_transfer(block_id):
                self._leaving.append((block_id, depth, request))
            return
        is_indexed = block_id in self.cache
        if self.blocks.release(block_id, is_indexed) and is_indexed:
            self._touch(block_id, depth, request, now_s, is_hit=False)

    def release_for_transfer(self, block_ids: Sequence[int], request: Request) -> None:
        """Gives a request's blocks back, once their content has left for another memory."""
        self._exporting.update(block_ids)
        self.release(block_ids, request, 0.0)

    def land_transfers(self, now_s: float) -> None:
        """Ends the transfers of the step that has landed."""
        for block_id, depth, request in self._leaving:
            is_indexed = block_id in self.cache
            self.blocks.land(block_id, is_indexed)
            if is_indexed:
                self._touch(block_id, depth, request, now_s, is_hit=False)
        self._leaving.clear()
        self._exporting.clear()

    def _evict(self) -> None:
        block_id = self._heap.pop()
        if block_id is None:
            detail = f"{self.blocks.count(BlockState.CACHED)} are cached and unreferenced, none is evictable"
            raise PluginContractError(self._plugin, "an unreferenced block can be evicted", detail)
        self._forget(block_id)
        self.blocks.evict(block_id)
        self.num_evicted += 1

    def _forget(self, block_id: int) -> None:
        uncovered = list(self.cache.remove(block_id))
        self._policy.on_remove(block_id)
        self._heap.forget(block_id)
        for other in uncovered:
            self._heap.offer(other)

    def clear_index(self) -> int:
        """Evicts every unreferenced cached block; returns how many. Blocks in use stay indexed."""
        count = self.blocks.count(BlockState.CACHED)
        for _ in range(count):
            self._evict()
        return count

    def _touch(self, block_id: int, depth: int, request: Request, now_s: float, *, is_hit: bool) -> None:
        touch = Touch(block_id, self._tick, now_s, depth, is_hit, request.retention_priority, request.retention_ttl_s)
        self._heap.update(self._policy.on_touch(touch))

    def _is_candidate(self, block_id: int) -> bool:
        return self.blocks.is_cached(block_id) and self.cache.is_evictable(block_id)

    def check(self) -> None:
        """Recounts the pool and compares it with the index. Raises AssertionError at the first divergence."""
        self.blocks.check()
        for block_id in self.blocks.ids(BlockState.CACHED):
            assert block_id in self.cache, f"block {block_id} is cached but not indexed"
        for block_id in self.blocks.ids(BlockState.FREE):
            assert block_id not in self.cache, f"block {block_id} is free but indexed"
        assert len(self.cache) <= self.blocks.num_usable, f"index of {len(self.cache)} exceeds the pool"
