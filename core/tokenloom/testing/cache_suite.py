"""What every prefix cache must keep: alone, in the core's KV manager, and under an engine."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis.stateful import run_state_machine_as_test

from tokenloom.interfaces.cache import CacheContext, Reservation
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.kv.pool import KVPool
from tokenloom.testing.cache_driver import LAYOUTS, CacheDriver
from tokenloom.testing.cache_index_suite import NUM_BLOCKS, CacheIndexSuite, keys_of
from tokenloom.testing.cache_machine import machine_for, walk
from tokenloom.testing.engine_harness import EngineHarness
from tokenloom.testing.footprint import footprint_bytes
from tokenloom.testing.random_tests import RANDOM
from tokenloom.testing.stub_model import full_group, stub_request
from tokenloom.testing.watched_cache import WatchedCache
from tokenloom.testing.workloads import Workload, play, workloads

__all__ = ["CacheSuite"]

ENGINE_GROUPS: Mapping[str, tuple[KVGroupSpec, ...]] = {
    "full": (full_group(),),
    "window": (full_group(0, window=6),),
    "hybrid": (full_group(), full_group(1, window=5)),
    "drafter": (full_group(), full_group(1, lookahead=1, is_drafter=True)),
}


class CacheSuite(CacheIndexSuite):
    """The rules of `PrefixCache` in `tokenloom.interfaces.cache`.

    The flag prefix_cache says that blocks are found again; a cache without it is held to finding nothing at all. The
    flag selective says that it may refuse blocks that it has room for, but for the first one in an empty index. The
    eviction policy under test with it is the one that `settings` names, or the cache's default.
    """

    def test_it_stores_prefixes_exactly_if_it_says_so(self) -> None:
        """`stores_prefixes` and the flag prefix_cache of its PluginInfo differ, or what stores nothing found blocks.

        Users see the flag, the core reads the property: without it, nothing is hashed or offered.
        """
        cache, keys = self.build(), keys_of("a", 4)
        has_flag = "prefix_cache" in self.capabilities.flags
        assert cache.stores_prefixes == has_flag, f"stores_prefixes={cache.stores_prefixes}, the flag says {has_flag}"
        if not has_flag:
            is_taken = cache.insert(keys, 0, 1)
            facts = (is_taken, cache.match(keys), 1 in cache, len(cache), cache.is_evictable(1))
            assert facts == (False, [], False, 0, False), f"it stores no prefixes, but {facts}"

    def test_match_changes_nothing(self) -> None:
        """A call of `match` changed what the index holds, what may be evicted, or its size in memory.

        Schedulers try many requests in a step; use is reported to the eviction policy by the core, as a `Touch`.
        """
        cache, keys = self.build(), keys_of("a", 6)
        index = WatchedCache(cache, NUM_BLOCKS)
        for depth in range(4):
            index.insert(keys, depth, 10 + depth)
        index.match(keys)
        before = footprint_bytes(cache)
        for number in range(200):
            index.match([*keys[: number % 6], *keys_of(f"other{number}", 3)], (None, 1)[number % 2])
        after = footprint_bytes(cache)
        assert after == before, f"{before} bytes before the calls of match(), {after} after them"

    def test_equal_tokens_of_another_salt_are_not_found(self) -> None:
        """A request found blocks that were computed under another salt, or did not find those of its own."""
        driver = self.driver("full")
        tokens = [0, 1, 0, 1, 0, 1, 0]
        driver.arrive(tokens, "one")
        driver.admit()
        driver.compute(0, 7)
        driver.let_go(0, is_final=True)
        for salt, expected in (("other", False), ("one", self.capabilities.flags >= {"prefix_cache"})):
            driver.arrive(tokens, salt)
            num_found = driver.admit()
            assert (num_found > 0) == expected, f"{num_found} tokens found under the salt {salt!r}"

    def test_everything_but_what_is_held_can_be_evicted(self) -> None:
        """Unreferenced blocks could not all be evicted, or blocks that a request holds were lost by it.

        When `is_evictable` says no for one, removing others must make it so, and that `remove` must return it. An index
        that evicts leaves only learns from its eviction policy's touches which blocks are held.
        """
        driver = self.driver("full")
        for tokens in ([0] * 7, [0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1]):
            driver.arrive(tokens)
            driver.admit()
            driver.compute(0, 9)
            driver.let_go(0, is_final=True)
            driver.check()
        driver.arrive([0, 0, 0, 0, 1])
        num_held = driver.admit()
        driver.reset()
        driver.check()
        driver.arrive([0, 0, 0, 0, 1])
        num_found = driver.admit()
        assert num_found == num_held, f"a request holds {num_held} cached tokens, {num_found} are found after a reset"

    def test_random_histories_agree_with_a_dictionary(self) -> None:
        """After some history of requests that come, compute, end and come back, the index differs from a dictionary.

        The steps shown are the shortest found. Layouts are mixtures of full attention, windows and drafters, whose
        blocks meet in one index under different keys.
        """
        few = settings(RANDOM, max_examples=40, stateful_step_count=30)
        run_state_machine_as_test(machine_for(self.driver), settings=few)

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_long_histories_agree_with_a_dictionary(self, layout: str) -> None:
        """As above, in one history that is long enough to evict most of what it stored; it is not shrunk."""
        driver = self.driver(layout)
        walk(driver, random.Random(layout), 400)
        if "prefix_cache" in self.capabilities.flags:
            assert any(watched.num_hits for watched in driver.watched), "nothing was found in a long history"

    def test_equal_histories_evict_the_same_blocks(self) -> None:
        """The same history, under other keys, evicted other blocks.

        Usual causes: the order of a set of keys, a generator without a seed, real time.
        """
        removed = []
        for root in (b"one", b"other"):
            driver = self.driver("shared_pool", root)
            walk(driver, random.Random(1), 300)
            removed.append(driver.watched[0].removed)
        assert removed[0] == removed[1], f"first {removed[0]}, then {removed[1]}"

    @RANDOM
    @given(workload=workloads())
    @pytest.mark.parametrize("layout", ENGINE_GROUPS)
    def test_random_traffic_yields_what_each_request_yields_alone(self, layout: str, workload: Workload) -> None:
        """Under an engine, a request read the KV of other tokens, yielded other tokens than alone, or never ended."""
        groups = ENGINE_GROUPS[layout]
        harness = EngineHarness(
            num_blocks=(workload.num_blocks * len(groups),),
            block_size=workload.block_size * self.capabilities.block_size_multiple,
            groups=groups,
            cache=self.build,
            max_num_seqs=workload.max_num_seqs,
            budget=workload.budget,
        )
        harness.check_truth(but=play(harness, workload.arrivals))

    def test_it_never_outgrows_the_memory_that_it_indexes(self) -> None:
        """10,000 different prompts went through 63 blocks, and the index held more, or its memory kept growing.

        Whatever is kept for a block must go when `remove`, or `on_remove` of the policy, is called.
        """
        cache = self.build(CacheContext(self.block_size, 64, 1_024))
        pool, request, size = KVPool(64, cache), stub_request("r", [1]), 0
        for number in range(10_000):
            pool.next_tick()
            now_s, keys = float(number), keys_of(f"prompt {number}", 2)
            ids = pool.allocate(2, now_s)
            if cache.stores_prefixes:
                for depth, block_id in enumerate(ids):
                    pool.publish(keys, depth, block_id, request, now_s)
            pool.release(ids, request, now_s)
            assert len(cache) <= 63, f"{len(cache)} blocks are indexed, there are 63"
            if number == 1_000:
                size = footprint_bytes(cache)
        grown = footprint_bytes(cache)
        assert grown <= 1.5 * size, f"{size} bytes after 1,000 prompts, {grown} after 10,000"

    def test_reservations_can_be_granted(self) -> None:
        """`reservation` returned no Reservation, a negative number, or asked for runs that the cache does not reserve.

        A cache that `reserves_runs` stores no prefixes.
        """
        cache = self.build()
        for length in (1, 16, 100):
            found = cache.reservation(stub_request("r", range(length)))
            assert isinstance(found, Reservation), f"got {found!r}"
            assert found.num_blocks >= 0, f"got {found}"
            assert not found.contiguous or cache.reserves_runs, f"got {found}"
        assert not (cache.reserves_runs and cache.stores_prefixes), "it reserves runs and stores prefixes"

    # ---- machinery ----

    def driver(self, layout: str, block_root: bytes = b"root") -> CacheDriver:
        """The cache under test in a KV manager."""
        return CacheDriver(layout, self.build, self.block_size, block_root)
