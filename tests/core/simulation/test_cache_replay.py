"""The cache-only replay against an LRU cache written out by itself, and its rules one at a time."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence

import pytest

from tokenloom.compose import compose_config
from tokenloom.interfaces.cache import CacheConfig
from tokenloom.simulation.cache_replay import CacheReplay, replay_cache
from tokenloom.simulation.trace_files import BlockChain


def cache_config(*overrides: str) -> CacheConfig:
    config = compose_config(overrides).engine.cache.config
    assert isinstance(config, CacheConfig)
    return config


class PlainLru:
    """The definition, word for word."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.order: OrderedDict[int, None] = OrderedDict()

    def serve(self, ids: Sequence[int]) -> int:
        hits = 0
        for block_id in ids:
            if block_id not in self.order:
                break
            hits += 1
        for block_id in reversed(ids):
            self.order[block_id] = None
            self.order.move_to_end(block_id)
        while len(self.order) > self._capacity:
            self.order.popitem(last=False)
        return hits


def chained_trace(seed: int, count: int) -> list[list[int]]:
    """Conversations that grow, and restart from shared openings: every id follows the same ids everywhere."""
    draw, next_id = random.Random(seed), iter(range(10**6))
    openings = [[next(next_id) for _ in range(draw.randrange(1, 6))] for _ in range(4)]
    talks: list[list[int]] = []
    trace = []
    for _ in range(count):
        if talks and draw.random() < 0.6:
            talk = draw.choice(talks)
        else:
            talk = list(draw.choice(openings))
            talks.append(talk)
        talk += [next(next_id) for _ in range(draw.randrange(0, 5))]
        trace.append(list(talk))
    return trace


def loose_trace(seed: int, count: int) -> list[list[int]]:
    """Ids in any order, some twice in a request: chains with gaps."""
    draw = random.Random(seed)
    return [[draw.randrange(25) for _ in range(draw.randrange(0, 12))] for _ in range(count)]


@pytest.mark.parametrize("capacity", [1, 2, 7, 30, 500])
@pytest.mark.parametrize(
    ("cache", "trace"),
    [
        ("hash", chained_trace(1, 150)),
        ("radix", chained_trace(2, 150)),
        ("hash", loose_trace(3, 300)),
    ],
    ids=["hash, chained", "radix, chained", "hash, with gaps"],
)
def test_hits_are_those_of_a_plain_lru_request_by_request(cache: str, trace: list[list[int]], capacity: int) -> None:
    config = cache_config(f"cache={cache}", "cache.eviction=lru", "cache.block_size=512")
    replay, plain = CacheReplay(config, capacity + 1, max(map(len, trace))), PlainLru(capacity)
    for number, ids in enumerate(trace):
        assert replay.serve(ids, float(number)) == plain.serve(ids), f"request {number}: {ids}"
        assert replay.num_cached == len(plain.order)
        replay.check()


def test_a_request_longer_than_the_cache_leaves_its_head() -> None:
    replay = CacheReplay(cache_config("cache=hash"), 4, 10)
    assert replay.serve(range(10), 0.0) == 0
    assert replay.num_cached == 3
    assert replay.serve([0, 1, 2, 3], 1.0) == 3


def test_hits_stop_at_a_gap_and_may_reach_the_last_block() -> None:
    replay = CacheReplay(cache_config("cache=hash"), 20, 4)
    replay.serve([1, 2], 0.0)
    replay.serve([9, 4], 1.0)
    assert replay.serve([1, 3, 4], 2.0) == 1
    assert replay.serve([1, 3, 4], 3.0) == 3


@pytest.mark.parametrize("eviction", ["lru", "fifo", "lfu", "slru", "priority_ttl"])
@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_every_cache_and_evictor_keeps_its_capacity(cache: str, eviction: str) -> None:
    trace = [BlockChain(float(number), tuple(ids)) for number, ids in enumerate(chained_trace(5, 120))]
    config = cache_config(f"cache={cache}", f"cache.eviction={eviction}")
    result = replay_cache(config, 21, trace, cache, lambda _: None)
    assert result.num_cached == 20
    assert 0 < result.num_hits < result.num_references == sum(len(chain.block_ids) for chain in trace)
    ample = replay_cache(config, 5_000, trace, cache, lambda _: None)
    assert ample.num_evicted == 0
    assert ample.num_hits == ample.num_references - ample.num_distinct > result.num_hits


@pytest.mark.parametrize("cache", ["hash", "radix", "none", "contiguous"])
def test_memory_without_end_costs_no_more_than_the_trace(cache: str) -> None:
    trace = [BlockChain(float(number), tuple(ids)) for number, ids in enumerate(chained_trace(6, 40))]
    config, told = cache_config(f"cache={cache}"), list[int]()
    ample = replay_cache(config, 5_000, trace, cache, told.append)
    assert replay_cache(config, 2**31 - 1, trace, cache, told.append) == ample
    assert ample.num_evicted == 0
    assert replay_cache(config, 2, [BlockChain(0.0, ())], cache, told.append).num_references == 0


def test_no_cache_has_no_hits_and_progress_is_told() -> None:
    told: list[int] = []
    trace = [BlockChain(0.0, (1, 2)), BlockChain(0.0, (1, 2))]
    result = replay_cache(cache_config("cache=none"), 10, trace, "cache=none", told.append)
    assert (result.num_hits, result.hit_ratio, result.num_cached, told) == (0, 0.0, 0, [1, 2])
