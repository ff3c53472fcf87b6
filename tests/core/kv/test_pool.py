"""KVPool: block states, prefix index and eviction order stay consistent, whatever index and policy are plugged in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest

from tokenloom.interfaces.cache import (
    BlockKey,
    CacheContext,
    EvictionKey,
    EvictionPolicy,
    PrefixCache,
    Reservation,
    Touch,
)
from tokenloom.kv.block_pool import BlockState
from tokenloom.kv.pool import KVPool
from tokenloom.request import RequestView
from tokenloom.testing.engine_harness import build_prefix_cache
from tokenloom.testing.stub_model import stub_request

REQUEST = stub_request("r", [1])
KEYS = [bytes([index]) * 32 for index in range(8)]


class SpyPolicy(EvictionPolicy):
    """Keys from a function of the touch; remembers every call."""

    def __init__(self, key: Callable[[Touch], EvictionKey] = lambda touch: (touch.tick, -touch.depth)) -> None:
        self._key = key
        self.touches: list[Touch] = []
        self.removed: list[int] = []
        self.num_refreshes = 0
        self.refreshed: list[tuple[int, EvictionKey]] = []

    def on_touch(self, touch: Touch) -> Iterable[tuple[int, EvictionKey]]:
        self.touches.append(touch)
        return [(touch.block_id, self._key(touch))]

    def on_remove(self, block_id: int) -> None:
        self.removed.append(block_id)

    def refresh(self, now_s: float) -> Iterable[tuple[int, EvictionKey]]:
        self.num_refreshes += 1
        return self.refreshed


class LeafIndex(PrefixCache):
    """A chain of keys of which only the last indexed block may be evicted, as in a tree."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self._policy = policy
        self.chain: list[tuple[BlockKey, int]] = []

    @property
    def stores_prefixes(self) -> bool:
        return True

    def match(self, keys: Sequence[BlockKey], window_blocks: int | None = None) -> list[int]:
        found: list[int] = []
        for key, (indexed_key, block_id) in zip(keys, self.chain, strict=False):
            if key != indexed_key:
                break
            found.append(block_id)
        return found

    def insert(self, keys: Sequence[BlockKey], index: int, block_id: int) -> bool:
        if index != len(self.chain):
            return False
        self.chain.append((keys[index], block_id))
        return True

    def remove(self, block_id: int) -> Iterable[int]:
        assert self.chain[-1][1] == block_id, f"block {block_id} is not the leaf"
        self.chain.pop()
        return [self.chain[-1][1]] if self.chain else []

    def is_evictable(self, block_id: int) -> bool:
        return bool(self.chain) and self.chain[-1][1] == block_id

    def __contains__(self, block_id: object) -> bool:
        return any(indexed == block_id for _, indexed in self.chain)

    def __len__(self) -> int:
        return len(self.chain)

    def reservation(self, request: RequestView) -> Reservation:
        return Reservation()

    def eviction_policy(self) -> EvictionPolicy:
        return self._policy


class SpiedIndex(PrefixCache):
    """The built-in hash index with another policy."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self._index = build_prefix_cache("hash", CacheContext(4, 16, 64))
        self._policy = policy

    @property
    def stores_prefixes(self) -> bool:
        return True

    def match(self, keys: Sequence[BlockKey], window_blocks: int | None = None) -> list[int]:
        return self._index.match(keys, window_blocks)

    def insert(self, keys: Sequence[BlockKey], index: int, block_id: int) -> bool:
        return self._index.insert(keys, index, block_id)

    def remove(self, block_id: int) -> Iterable[int]:
        return self._index.remove(block_id)

    def is_evictable(self, block_id: int) -> bool:
        return self._index.is_evictable(block_id)

    def __contains__(self, block_id: object) -> bool:
        return block_id in self._index

    def __len__(self) -> int:
        return len(self._index)

    def reservation(self, request: RequestView) -> Reservation:
        return self._index.reservation(request)

    def eviction_policy(self) -> EvictionPolicy:
        return self._policy


def publish_chain(pool: KVPool, count: int) -> list[int]:
    """`count` blocks computed, indexed and released by one request."""
    pool.next_tick()
    ids = pool.allocate(count, 0.0)
    for index, block_id in enumerate(ids):
        pool.publish(KEYS, index, block_id, REQUEST, 0.0)
    pool.release(ids, REQUEST, 0.0)
    pool.check()
    return ids


def test_released_blocks_stay_cached_only_if_they_are_indexed() -> None:
    pool = KVPool(6, SpiedIndex(SpyPolicy()))
    ids = pool.allocate(3, 0.0)
    pool.publish(KEYS, 0, ids[0], REQUEST, 0.0)
    pool.release(ids, REQUEST, 0.0)
    assert [pool.blocks.state(b) for b in ids] == [BlockState.CACHED, BlockState.FREE, BlockState.FREE]
    assert pool.num_available == 5


def test_allocation_takes_free_blocks_first_and_then_evicts_by_key() -> None:
    policy = SpyPolicy()
    pool = KVPool(5, SpiedIndex(policy))
    ids = publish_chain(pool, 3)
    assert pool.allocate(1, 1.0) == [({1, 2, 3, 4} - set(ids)).pop()]
    assert (policy.num_refreshes, pool.num_evicted) == (0, 0)
    assert pool.allocate(2, 1.0) == [ids[2], ids[1]], "of one sequence the tail goes first"
    assert (policy.num_refreshes, pool.num_evicted, policy.removed) == (1, 2, [ids[2], ids[1]])
    assert pool.cache.match(KEYS) == [ids[0]]


def test_refresh_changes_the_order_by_time_alone() -> None:
    policy = SpyPolicy()
    pool = KVPool(4, SpiedIndex(policy))
    ids = publish_chain(pool, 3)
    policy.refreshed = [(ids[0], (-1.0, 0.0))]
    assert pool.allocate(1, 9.0) == [ids[0]]


def test_hit_protects_a_block_until_it_is_released_and_makes_it_recent() -> None:
    pool = KVPool(4, SpiedIndex(SpyPolicy()))
    ids = publish_chain(pool, 3)
    pool.next_tick()
    pool.acquire(ids[2:], REQUEST, 0.0)
    assert pool.num_available == 2
    assert sorted(pool.allocate(2, 0.0)) == sorted(ids[:2])
    pool.release(ids[2:], REQUEST, 0.0)
    pool.check()
    assert pool.allocate(1, 0.0) == [ids[2]]


def test_equal_key_keeps_the_first_block_and_the_second_stays_private() -> None:
    pool = KVPool(4, SpiedIndex(SpyPolicy()))
    first, second = pool.allocate(2, 0.0)
    pool.publish(KEYS, 0, first, REQUEST, 0.0)
    pool.publish(KEYS, 0, second, REQUEST, 0.0)
    assert pool.cache.match(KEYS[:1]) == [first]
    pool.release([second], REQUEST, 0.0)
    assert pool.blocks.state(second) is BlockState.FREE
    pool.release([first], REQUEST, 0.0)
    pool.check()


def test_touches_say_what_happened() -> None:
    policy = SpyPolicy()
    pool = KVPool(4, SpiedIndex(policy))
    request = stub_request("kept", [1], retention_priority=3, retention_ttl_s=5.0)
    pool.next_tick()
    block_id = pool.allocate(1, 0.0)[0]
    pool.publish(KEYS, 2, block_id, request, 1.0)
    pool.next_tick()
    pool.release_one(block_id, 2, request, 2.0)
    pool.next_tick()
    pool.acquire([0, 0, block_id], request, 3.0)
    assert policy.touches == [
        Touch(block_id, 1, 1.0, 2, False, 3, 5.0),
        Touch(block_id, 2, 2.0, 2, False, 3, 5.0),
        Touch(block_id, 3, 3.0, 2, True, 3, 5.0),
    ]


def test_clear_index_spares_blocks_in_use() -> None:
    pool = KVPool(6, SpiedIndex(SpyPolicy()))
    ids = publish_chain(pool, 4)
    pool.acquire(ids[:1], REQUEST, 0.0)
    assert pool.clear_index() == 3
    pool.check()
    assert pool.cache.match(KEYS) == ids[:1]
    pool.release(ids[:1], REQUEST, 0.0)
    assert pool.clear_index() == 1
    assert len(pool.cache) == 0
    assert pool.blocks.count(BlockState.FREE) == pool.blocks.num_usable


@pytest.mark.parametrize("key", [lambda touch: (touch.depth,), lambda touch: (-touch.depth,)])
def test_index_whose_leaves_alone_may_go_is_emptied_leaf_by_leaf(key: Callable[[Touch], EvictionKey]) -> None:
    """Even if the policy would rather evict the root first."""
    pool = KVPool(6, LeafIndex(SpyPolicy(key)))
    ids = publish_chain(pool, 5)
    assert pool.allocate(3, 0.0) == [ids[4], ids[3], ids[2]]
    assert pool.cache.match(KEYS) == ids[:2]
    assert pool.clear_index() == 2
    pool.check()


def test_publish_of_a_block_that_nobody_holds_is_our_bug() -> None:
    pool = KVPool(4, SpiedIndex(SpyPolicy()))
    with pytest.raises(AssertionError, match="without a holder"):
        pool.publish(KEYS, 0, 1, REQUEST, 0.0)


def test_check_finds_a_free_block_that_is_still_indexed() -> None:
    pool = KVPool(4, SpiedIndex(SpyPolicy()))
    pool.cache.insert(KEYS, 0, 3)
    with pytest.raises(AssertionError, match="free but indexed"):
        pool.check()
