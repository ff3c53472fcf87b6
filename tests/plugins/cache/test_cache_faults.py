"""Faults that prefix caches of other engines had, tried on every cache and eviction policy that stores prefixes."""

from __future__ import annotations

import pytest

from tests.plugins.cache.served_pool import ServedPool, build_cache, chain
from tokenloom.interfaces.cache import Touch
from tokenloom.kv.block_pool import BlockState
from tokenloom.request import FinishReason
from tokenloom.testing.engine_harness import EngineHarness
from tokenloom.testing.footprint import footprint_bytes

ALL = [(cache, eviction) for cache in ("hash", "radix") for eviction in ("lru", "fifo", "lfu", "slru", "priority_ttl")]


@pytest.mark.parametrize(("cache", "eviction"), ALL)
def test_hit_does_not_go_on_behind_an_evicted_block(cache: str, eviction: str) -> None:
    index, keys = build_cache(cache, eviction, 8), chain("abcd")
    for depth in range(4):
        index.insert(keys, depth, 1 + depth)
        list(index.eviction_policy().on_touch(Touch(1 + depth, 1, 1.0, depth, False)))
    index.remove(2)
    assert index.match(keys) == [1]
    assert index.match(keys, 2) == [0, 0, 3, 4]


@pytest.mark.parametrize(("cache", "eviction"), ALL)
def test_counts_add_up_through_splits_holds_and_evictions(cache: str, eviction: str) -> None:
    """A run of 375 blocks is left at 374 while it is held, in a pool that cannot hold both tails."""
    served = ServedPool(build_cache(cache, eviction, 380), 380)
    first, ids = served.hold(range(375))
    assert first == 0
    num_hits, others = served.hold([*range(374), "other", "end"])
    assert num_hits == 374
    assert served.pool.blocks.count(BlockState.ACTIVE) == 377
    served.let_go(ids)
    assert (served.pool.blocks.count(BlockState.ACTIVE), served.pool.blocks.count(BlockState.CACHED)) == (376, 1)
    assert served.hold(["x", "y", "z"])[0] == 0, "takes two that are free, and evicts the one tail that is idle"
    served.let_go(others)
    assert served.serve([*range(374), "other", "end"]) == 376
    assert served.pool.num_evicted == 1


@pytest.mark.parametrize(("cache", "eviction"), ALL)
def test_prompt_that_needs_the_whole_pool_runs_when_the_cache_is_full(cache: str, eviction: str) -> None:
    """What is cached never makes a prompt unschedulable, nor does one end without tokens."""
    harness = EngineHarness(
        num_blocks=(17,),
        block_size=4,
        cache=lambda context: build_cache(cache, eviction, context.num_blocks),
        budget=16,
        max_model_len=64,
    )
    for number in range(4):
        harness.run(harness.request(f"warm{number}", range(number, number + 20), max_tokens=4))
    assert harness.engine.kv_usage()["free"] < 3
    harness.run(harness.request("long", range(100, 160), max_tokens=4))
    harness.check_truth()
    assert harness.reason("long") is FinishReason.LENGTH
    assert len(harness.tokens["long"]) == 4


@pytest.mark.parametrize("eviction", [eviction for cache, eviction in ALL if cache == "radix"])
def test_many_prompts_leave_no_more_than_the_pool_holds(eviction: str) -> None:
    settings = {"half_life_s": 50.0} if eviction == "lfu" else None
    served, size = ServedPool(build_cache("radix", eviction, 65, settings), 65), 0
    for number in range(800):
        kept = {"retention_priority": number % 3, "retention_ttl_s": 0.5 + number % 40}
        served.serve([number % 7, number, "tail"], **kept)
        if number == 200:
            size = footprint_bytes(served.pool.cache)
    assert len(served.pool.cache) <= 64
    assert footprint_bytes(served.pool.cache) <= 1.5 * size
