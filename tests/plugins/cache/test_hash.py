"""The hash cache: longest prefix up to the first gap, windows, one block a key."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from pydantic import ValidationError

from tokenloom.interfaces.cache import CacheContext, Reservation
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.testing.stub_model import stub_request
from tokenloom_cache.hash import HashCache, HashConfig
from tokenloom_cache.lru import Lru, LruConfig

KEYS = [bytes([index]) * 32 for index in range(10)]
EVICTION = PluginChoice("cache.eviction", "lru", LruConfig())


def cache_with(*indices: int) -> HashCache:
    """Block 10 + i is indexed under key i."""
    cache = HashCache(Lru())
    for index in indices:
        assert cache.insert(KEYS, index, 10 + index)
    return cache


def test_config_builds_a_cache_with_its_policy() -> None:
    cache = HashConfig(eviction=EVICTION).build(CacheContext(4, 16, 64))
    assert isinstance(cache, HashCache)
    assert cache.stores_prefixes
    assert isinstance(cache.eviction_policy(), Lru)
    assert cache.eviction_policy() is cache.eviction_policy()
    assert cache.reservation(stub_request("r", [1])) == Reservation()


@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 0},
        {"block_size": 1_025},
        {"num_blocks": 1},
        {"memory_fraction": 0.0},
        {"block_size": True},
        {"size": 1},
    ],
)
def test_config_refuses_what_makes_no_sense(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(settings))):
        HashConfig(eviction=EVICTION, **settings)  # type: ignore[arg-type]


def test_match_stops_at_the_first_gap() -> None:
    assert cache_with(0, 1, 2, 3).match(KEYS[:6]) == [10, 11, 12, 13]
    assert cache_with(0, 2, 3).match(KEYS[:4]) == [10]
    assert cache_with(1, 2, 3).match(KEYS[:4]) == []
    assert cache_with(0, 1).match([]) == []


@pytest.mark.parametrize(
    ("indexed", "window_blocks", "expected"),
    [
        ((0, 1, 2, 3), 2, [0, 0, 12, 13]),
        ((2, 3), 2, [0, 0, 12, 13]),
        ((3,), 2, []),
        ((0, 3), 2, [10]),
        ((0, 1, 3), 2, [10, 11]),
        ((0, 1, 3), 1, [0, 0, 0, 13]),
        ((0, 1, 2, 3), 9, [10, 11, 12, 13]),
        ((1, 2, 3), 9, []),
        ((1, 2, 3), 3, [0, 11, 12, 13]),
        ((), 0, [0, 0, 0, 0]),
        ((), 1, []),
    ],
)
def test_match_in_a_window_needs_its_last_blocks_only(
    indexed: tuple[int, ...], window_blocks: int, expected: list[int]
) -> None:
    assert cache_with(*indexed).match(KEYS[:4], window_blocks) == expected


@pytest.mark.parametrize("seed", range(30))
def test_match_is_the_longest_valid_prefix(seed: int) -> None:
    rng = random.Random(seed)
    indexed = {index for index in range(10) if rng.random() < 0.7}
    cache = cache_with(*sorted(indexed))
    for window in (None, 1, 2, 3, 5, 20):
        longest = max(
            length
            for length in range(11)
            if all(i in indexed for i in range(0 if window is None else max(0, length - window), length))
        )
        found = cache.match(KEYS, window)
        assert len(found) == longest
        first = 0 if window is None else max(0, longest - window)
        assert found == [0] * first + [10 + i for i in range(first, longest)]


def test_second_block_under_a_key_is_not_taken() -> None:
    cache = cache_with(0)
    assert not cache.insert(KEYS, 0, 5)
    assert cache.match(KEYS[:1]) == [10]
    assert (10 in cache, 5 in cache, len(cache)) == (True, False, 1)


def test_removed_block_is_gone_and_its_key_free_again() -> None:
    cache = cache_with(0, 1)
    assert list(cache.remove(10)) == []
    assert (10 in cache, len(cache), cache.match(KEYS)) == (False, 1, [])
    assert cache.insert(KEYS, 0, 7)
    assert cache.match(KEYS) == [7, 11]


def test_every_indexed_block_is_evictable_and_no_other() -> None:
    cache = cache_with(0, 1)
    assert [cache.is_evictable(block_id) for block_id in (10, 11, 12)] == [True, True, False]


def test_size_of_the_index_is_the_number_of_blocks_in_it() -> None:
    cache = HashCache(Lru())
    rng = random.Random(0)
    held: set[int] = set()
    for _ in range(5_000):
        block_id = rng.randrange(1, 64)
        if block_id in held:
            cache.remove(block_id)
            held.remove(block_id)
        elif cache.insert([rng.randbytes(32)], 0, block_id):
            held.add(block_id)
        assert len(cache) == len(held)
    assert len(cache._block_of) == len(cache._key_of) == len(held)
    assert all(a != b for a, b in pairwise(sorted(cache._block_of)))
