"""What every prefix cache must keep: alone, in the core's KV manager, and under an engine."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis.stateful import run_state_machine_as_test

from tokenloom.interfaces.cache import BlockKey, CacheContext, PrefixCache, Reservation
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.kv.pool import KVPool
from tokenloom.testing.cache_driver import LAYOUTS, CacheDriver
from tokenloom.testing.cache_machine import machine_for, walk
from tokenloom.testing.engine_harness import EngineHarness
from tokenloom.testing.footprint import footprint_bytes
from tokenloom.testing.random_tests import RANDOM
from tokenloom.testing.stub_model import full_group, stub_request
from tokenloom.testing.suite import PluginSuite
from tokenloom.testing.watched_cache import WatchedCache
from tokenloom.testing.workloads import Workload, play, workloads

__all__ = ["CacheSuite"]

NUM_BLOCKS = 32

ENGINE_GROUPS: Mapping[str, tuple[KVGroupSpec, ...]] = {
    "full": (full_group(),),
    "window": (full_group(0, window=6),),
    "hybrid": (full_group(), full_group(1, window=5)),
    "drafter": (full_group(), full_group(1, lookahead=1, is_drafter=True)),
}


class CacheSuite(PluginSuite):
    """The rules of `PrefixCache` in `tokenloom.interfaces.cache`.

    The flag prefix_cache says that blocks are found again; a cache without it is held to finding nothing at all. The
    eviction policy under test with it is the one that `settings` names, or the cache's default.
    """

    kind = "cache"

    def test_it_stores_prefixes_exactly_if_it_says_so(self) -> None:
        """`stores_prefixes` and the flag prefix_cache of its PluginInfo differ, or what stores nothing found blocks.

        Users see the flag, the core reads the property: without it, nothing is hashed or offered.
        """
        cache, keys = self.build(), _keys("a", 4)
        has_flag = "prefix_cache" in self.capabilities.flags
        assert cache.stores_prefixes == has_flag, f"stores_prefixes={cache.stores_prefixes}, the flag says {has_flag}"
        if not has_flag:
            is_taken = cache.insert(keys, 0, 1)
            facts = (is_taken, cache.match(keys), 1 in cache, len(cache), cache.is_evictable(1))
            assert facts == (False, [], False, 0, False), f"it stores no prefixes, but {facts}"

    def test_a_computed_prefix_is_found_again(self) -> None:
        """The blocks of a sequence were offered from its start, and `match` did not find those that were taken.

        The first one offered to an empty index must be taken. `match` returns one id for each leading key that is
        indexed, whatever keys follow.
        """
        index, keys = self.index(), _keys("a", 6)
        assert index.match(keys) == [], "an empty index finds nothing"
        assert index.match([]) == [], "no keys, no blocks"
        assert index.insert(keys, 0, 10), "an empty index did not take a block"
        for depth in range(1, 6):
            index.insert(keys, depth, 10 + depth)
        for length in range(7):
            index.match(keys[:length])
            index.match([*keys[:length], *_keys("b", 3)])

    def test_a_hit_stops_at_the_first_gap(self) -> None:
        """One block of a sequence was evicted, or never offered, and `match` went on behind it or stopped before.

        Blocks behind a gap may stay indexed, but without a window they are no hit.
        """
        keys = _keys("a", 5)
        for gap in range(5):
            index = self.index()
            for depth in range(5):
                if depth != gap:
                    index.insert(keys, depth, 10 + depth)
                    index.match(keys)
        for first in range(5):
            index = self.index()
            for depth in range(5):
                index.insert(keys, depth, 10 + depth)
            for block_id in [10 + (first + offset) % 5 for offset in range(5)] * 5:
                if block_id in index and index.is_evictable(block_id):
                    index.remove(block_id)
                    index.match(keys)
            assert len(index) == 0, f"{len(index)} blocks could not be evicted in any order"

    @pytest.mark.parametrize("window_blocks", [0, 1, 2, 3, 9])
    def test_a_window_needs_only_its_last_blocks(self, window_blocks: int) -> None:
        """`match` with window_blocks did not return the longest prefix of which the last blocks are indexed.

        The ids that the window does not reach are 0, be those blocks indexed or not.
        """
        rng, keys = random.Random(window_blocks), _keys("a", 8)
        for _ in range(20):
            index = self.index()
            for depth in range(8):
                index.insert(keys, depth, 10 + depth)
            for block_id in rng.sample(range(10, 18), 4):
                if index.is_evictable(block_id):
                    index.remove(block_id)
                for length in range(9):
                    index.match(keys[:length], window_blocks)

    def test_a_key_is_indexed_once(self) -> None:
        """A second block was taken under a key, or it replaced the first, or its key was not free again afterwards."""
        index, keys = self.index(), _keys("a", 2)
        assert index.insert(keys, 0, 1), "an empty index did not take a block"
        assert not index.insert(keys, 0, 2), "a key was indexed twice"
        assert index.match(keys[:1]) == [1], "the first block under a key is the one that is found"
        index.remove(1)
        assert index.insert(keys, 0, 2), "a key whose block was removed is free again"
        index.match(keys[:1])

    def test_match_changes_nothing(self) -> None:
        """A call of `match` changed what the index holds, what may be evicted, or its size in memory.

        Schedulers try many requests in a step; use is reported to the eviction policy by the core, as a `Touch`.
        """
        cache, keys = self.build(), _keys("a", 6)
        index = WatchedCache(cache, NUM_BLOCKS)
        for depth in range(4):
            index.insert(keys, depth, 10 + depth)
        index.match(keys)
        before = footprint_bytes(cache)
        for number in range(200):
            index.match([*keys[: number % 6], *_keys(f"other{number}", 3)], (None, 1)[number % 2])
        after = footprint_bytes(cache)
        assert after == before, f"{before} bytes before the calls of match(), {after} after them"

    def test_any_key_is_told_from_any_other(self) -> None:
        """A block was found under another key than its own, so that a request would read the KV of other tokens.

        Compare all 32 bytes of a key.
        """
        index = self.index(1_000)
        for number in range(1, 1_000):
            index.insert(_keys(f"prompt {number}", 1), 0, number)
        for number in range(1, 1_100):
            index.match(_keys(f"prompt {number}", 1))

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
            now_s, keys = float(number), _keys(f"prompt {number}", 2)
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
        """`reservation` returned no Reservation, a negative number, or asked for one run of blocks.

        Runs of contiguous block ids are refused by this core.
        """
        cache = self.build()
        for length in (1, 16, 100):
            found = cache.reservation(stub_request("r", range(length)))
            assert isinstance(found, Reservation), f"got {found!r}"
            assert found.num_blocks >= 0, f"got {found}"
            assert not found.contiguous, f"got {found}"

    # ---- machinery ----

    @property
    def block_size(self) -> int:
        """The smallest block size that the kit's layouts and the plugin can both be cut into."""
        multiple = self.capabilities.block_size_multiple
        return multiple if multiple % 2 == 0 else 2 * multiple

    def build(self, context: CacheContext | None = None) -> PrefixCache:
        """The cache under test."""
        context = context or CacheContext(self.block_size, NUM_BLOCKS, 1_024)
        cache = self.make_config(block_size=context.block_size).build(context)
        assert isinstance(cache, PrefixCache), f"build() returned a {type(cache).__name__}, not a PrefixCache"
        return cache

    def index(self, num_blocks: int = NUM_BLOCKS) -> WatchedCache:
        """The cache under test beside a dictionary; skips the test if it stores nothing."""
        cache = self.build(CacheContext(self.block_size, num_blocks, 1_024))
        if not cache.stores_prefixes:
            pytest.skip("it stores no prefixes")
        return WatchedCache(cache, num_blocks)

    def driver(self, layout: str, block_root: bytes = b"root") -> CacheDriver:
        """The cache under test in a KV manager."""
        return CacheDriver(layout, self.build, self.block_size, block_root)


def _keys(name: str, count: int) -> list[BlockKey]:
    return [hashlib.sha256(f"{name} {index}".encode()).digest() for index in range(count)]
