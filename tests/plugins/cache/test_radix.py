"""The radix cache: the hits of `hash`, leaves first, and who holds what."""

from __future__ import annotations

import random

import pytest
from pydantic import ValidationError

from tests.plugins.cache.served_pool import ServedPool, build_cache, chain
from tokenloom.interfaces.cache import CacheContext, EvictionPolicy, Reservation, Touch
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.testing.cache_driver import LAYOUTS, CacheDriver
from tokenloom.testing.stub_model import stub_request
from tokenloom_cache.lru import Lru, LruConfig
from tokenloom_cache.radix import RadixCache, RadixConfig
from tokenloom_cache.radix_tree import TreeShape

EVICTORS = ("lru", "fifo", "lfu", "slru", "priority_ttl")
EVICTION = PluginChoice("cache.eviction", "lru", LruConfig())


def radix_with(*sequences: str) -> RadixCache:
    """Block ids count up from 1 in order of insertion."""
    cache, block_id = RadixCache(Lru()), 0
    for letters in sequences:
        keys = chain(letters)
        for index in range(len(keys)):
            block_id += cache.insert(keys, index, block_id + 1)
    return cache


def evictable(cache: RadixCache) -> list[int]:
    return [block_id for block_id in range(1, 100) if block_id in cache and cache.is_evictable(block_id)]


def touched(cache: RadixCache, block_id: int, *, is_hit: bool) -> set[int]:
    policy: EvictionPolicy = cache.eviction_policy()
    return {changed for changed, _ in policy.on_touch(Touch(block_id, 1, 1.0, 0, is_hit))}


def test_config_builds_a_cache_with_its_policy() -> None:
    cache = RadixConfig(eviction=EVICTION).build(CacheContext(4, 16, 64))
    assert isinstance(cache, RadixCache)
    assert cache.stores_prefixes
    assert cache.eviction_policy() is cache.eviction_policy()
    assert cache.reservation(stub_request("r", [1])) == Reservation()
    with pytest.raises(ValidationError, match="page_size"):
        RadixConfig(eviction=EVICTION, page_size=4)  # type: ignore[call-arg]


def test_only_tails_may_go_and_each_uncovers_the_next() -> None:
    cache = radix_with("abc", "abxy")  # 1 2 3, 4 5
    assert evictable(cache) == [3, 5]
    assert list(cache.remove(5)) == [4]
    assert list(cache.remove(4)) == [], "c is still behind b"
    assert list(cache.remove(3)) == [2]
    assert list(cache.remove(2)) == [1]
    assert list(cache.remove(1)) == []
    assert (len(cache), cache.shape()) == (0, TreeShape(0, 0, 0, 0, 0))


def test_held_leaf_keeps_itself_and_its_prefix() -> None:
    """The pin counts from the leaf to the root, both included."""
    for eviction in EVICTORS:
        served = ServedPool(build_cache("radix", eviction, 12), 12)
        served.serve("abcdef")
        served.serve("abxy")
        num_hits, ids = served.hold("abxy")
        assert num_hits == 4
        assert served.pool.clear_index() == 4, f"{eviction}: c, d, e, f"
        served.pool.check()
        assert served.pool.match(chain("abxy"), None) == ids
        served.let_go(ids)
        assert served.pool.clear_index() == 4


@pytest.mark.parametrize("seed", range(4))
def test_random_holds_never_lose_a_held_block(seed: int) -> None:
    rng = random.Random(seed)
    served = ServedPool(build_cache("radix", rng.choice(EVICTORS), 40), 40)
    held: list[tuple[list[str], list[int]]] = []
    for _ in range(300):
        letters = rng.choices("ab", k=rng.randrange(1, 8))
        if len(held) < 4 and rng.random() < 0.6:
            held.append((letters, served.hold(letters)[1]))
        elif held:
            served.let_go(held.pop(rng.randrange(len(held)))[1])
        if rng.random() < 0.05:
            served.pool.clear_index()
        for kept, ids in held:
            assert served.pool.match(chain(kept), None) == ids


def test_idle_block_before_a_held_one_may_go() -> None:
    """It left the window of who holds the next one; waiting for that would keep it for as long as the request runs."""
    cache = radix_with("abcd")
    for block_id in (1, 2, 3, 4):
        touched(cache, block_id, is_hit=False)
    assert touched(cache, 1, is_hit=False) == {1}
    assert evictable(cache)[0] == 1
    assert touched(cache, 2, is_hit=False) == {2}
    assert not cache.is_evictable(1), "b is idle, too, and goes first"
    assert cache.is_evictable(2)
    assert list(cache.remove(2)) == [1]


def test_hold_of_the_next_block_offers_the_one_before_it() -> None:
    """A window's hit takes c alone: b may go by then, and nobody else would tell the core."""
    cache = radix_with("abc")
    for is_hit in (False, False):
        for block_id in (3, 2, 1):
            touched(cache, block_id, is_hit=is_hit)
    assert evictable(cache) == [3]
    assert touched(cache, 3, is_hit=True) == {3, 2}
    assert touched(cache, 3, is_hit=True) == {3}, "a second holder changes nothing"
    assert cache.is_evictable(2)


def test_held_block_is_not_uncovered() -> None:
    """Its release will offer it."""
    cache = radix_with("ab")
    touched(cache, 1, is_hit=False)
    assert list(cache.remove(2)) == []
    assert touched(cache, 1, is_hit=False) == {1}
    assert cache.is_evictable(1)


def test_keys_of_removed_blocks_are_forgotten() -> None:
    served = ServedPool(build_cache("radix", "lru", 12), 12)
    served.serve("abcd")
    assert served.pool.clear_index() == 4
    policy = served.pool.cache.eviction_policy()
    assert policy._keys == {}  # type: ignore[attr-defined]


def test_block_that_comes_back_is_again_behind_its_prefix() -> None:
    cache = radix_with("abcd")
    keys = chain("abcd")
    cache.remove(4)
    cache.remove(3)
    assert cache.insert(keys, 3, 14), "before its predecessor"
    assert evictable(cache) == [2, 14]
    assert cache.insert(keys, 2, 13)
    assert evictable(cache) == [14]
    assert cache.match(keys) == [1, 2, 13, 14]


@pytest.mark.parametrize(
    ("indexed", "window_blocks", "expected"),
    [
        ((0, 1, 2, 3), None, [10, 11, 12, 13]),
        ((0, 2, 3), None, [10]),
        ((1, 2, 3), None, []),
        ((0, 1, 2, 3), 2, [0, 0, 12, 13]),
        ((2, 3), 2, [0, 0, 12, 13]),
        ((3,), 2, []),
        ((0, 3), 2, [10]),
        ((0, 1, 3), 2, [10, 11]),
        ((0, 1, 3), 1, [0, 0, 0, 13]),
        ((1, 2, 3), 9, []),
        ((1, 2, 3), 3, [0, 11, 12, 13]),
        ((), 0, [0, 0, 0, 0]),
        ((), 1, []),
    ],
)
def test_match_with_gaps_and_windows(indexed: tuple[int, ...], window_blocks: int | None, expected: list[int]) -> None:
    cache, keys = RadixCache(Lru()), chain("abcd")
    for index in indexed:
        assert cache.insert(keys, index, 10 + index)
    assert cache.match(keys, window_blocks) == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_random_traffic_hits_as_hash_does_while_nothing_is_evicted(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, groups = LAYOUTS[layout]
    num_pools = 1 + max(group.pool_id for group in groups)
    monkeypatch.setattr("tokenloom.testing.cache_driver.LAYOUTS", {layout: ((800,) * num_pools, groups)})
    found = []
    for cache in ("hash", "radix"):
        rng = random.Random(layout)
        driver = CacheDriver(layout, lambda context, name=cache: build_cache(name, "lru", context.num_blocks), 2)  # type: ignore[misc]
        hits = []
        for _ in range(60):
            driver.arrive(rng.choices([0, 1], [4, 1], k=rng.randrange(1, 24)))
            hits.append(driver.admit())
            driver.compute(rng.randrange(3), rng.randrange(1, 20), rng.randrange(3), rng.randrange(2))
            if driver.count(is_running=True) > 2:
                driver.let_go(rng.randrange(3), is_final=True)
        assert all(not pool.num_evicted for pool in driver.kv.pools)
        found.append(hits)
    assert found[0] == found[1]
    assert sum(map(bool, found[0])) > 20


def num_cut_off(cache: str, eviction: str) -> int:
    """Serves sequences that grow over many steps from a pool too small for them; counts blocks that cannot be found."""
    rng, served, count = random.Random(eviction), ServedPool(build_cache(cache, eviction, 25), 25), 0
    for _ in range(200):
        letters = rng.choices("abc", [8, 2, 1], k=rng.randrange(1, 10))
        for length in range(1, len(letters) + 1, 2):
            served.serve(letters[:length])
        cached = [block_id for block_id in range(1, 25) if block_id in served.pool.cache]
        count += sum(served.pool.match(served.keys_to[block_id], None)[-1:] != [block_id] for block_id in cached)
    assert served.pool.num_evicted > 100
    return count


@pytest.mark.parametrize("eviction", EVICTORS)
def test_no_cached_block_is_cut_off_whatever_the_policy(eviction: str) -> None:
    assert num_cut_off("radix", eviction) == 0


def test_some_are_cut_off_without_the_tree() -> None:
    assert num_cut_off("hash", "fifo") > 0
