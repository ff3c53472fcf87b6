"""What every eviction policy must keep: alone, and in a pool under the built-in index."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence

import pytest

from tokenloom.interfaces.cache import CacheContext, EvictionKey, EvictionPolicy, PrefixCache, Touch
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.kv.block_pool import BlockState
from tokenloom.plugins import default_registry
from tokenloom.testing.cache_driver import CacheDriver
from tokenloom.testing.cache_machine import walk
from tokenloom.testing.footprint import footprint_bytes
from tokenloom.testing.suite import PluginSuite, build_choice

__all__ = ["EvictionSuite"]

CONTEXT = CacheContext(4, 64, 256)
LARGE = CacheContext(4, 128, 8_192)

COMMITS: Mapping[str, Sequence[tuple[int, float]]] = {
    "a second apart": [(tick, float(tick)) for tick in range(1, 21)],
    "at one time": [(tick, 7.0) for tick in range(1_015, 1_035)],
    "a millisecond apart": [(tick, 1e5 + 0.001 * tick) for tick in range(1, 21)],
    "far on": [(tick, tick / 64) for tick in (1, 1_023, *range(2**20 - 9, 2**20 + 9))],
}
"""(tick, now_s) of twenty commits, one after the other."""


class EvictionSuite(PluginSuite):
    """The rules of `EvictionPolicy` in `tokenloom.interfaces.cache`.

    Flags by which a policy declares what it promises beyond a total order:
        tail_first: of one sequence's blocks that one commit published, the deeper one goes first.
        recency: a block that is used again goes after those that were used before it.
        retention: a larger retention_priority is kept longer, until retention_ttl_s has passed.
    """

    kind = "cache.eviction"

    def test_a_touch_yields_the_key_of_its_block(self) -> None:
        """`on_touch` did not return the touched block, or a block that is not indexed.

        Without a key a block is never evicted. Others are returned only if their key changed.
        """
        policy, known = self.build(), set[int]()
        for touch in _touches(300):
            known.add(touch.block_id)
            changed = dict(policy.on_touch(touch))
            assert touch.block_id in changed, f"{touch} changed {changed}"
            assert set(changed) <= known, f"{touch} changed {changed}; indexed are {known}"

    def test_keys_can_be_compared(self) -> None:
        """A key is no tuple of numbers, holds a NaN, or is of another length than the others.

        Keys are compared as tuples; with a NaN or unequal lengths, there is no order.
        """
        policy, lengths = self.build(), set[int]()
        for touch in _touches(300):
            for block_id, key in (*policy.on_touch(touch), *policy.refresh(touch.now_s)):
                is_tuple = isinstance(key, tuple) and all(type(part) in (int, float) for part in key)
                assert is_tuple, f"block {block_id} has the key {key!r}"
                assert not any(math.isnan(part) for part in key), f"block {block_id} has the key {key!r}"
                lengths.add(len(key))
        assert len(lengths) == 1, f"keys have the lengths {sorted(lengths)}"

    def test_equal_touches_give_equal_keys(self) -> None:
        """A second policy, told the same, gave other keys.

        Time comes with the touch and with `refresh`; the machine's clock, random numbers and the order of a set are
        not for policies.
        """
        told = [_keys(self.build(), _touches(300)) for _ in range(2)]
        for block_id, key in told[0].items():
            assert told[1][block_id] == key, f"block {block_id}: first {key}, then {told[1][block_id]}"

    def test_time_alone_changes_known_blocks_only(self) -> None:
        """`refresh` returned a block that was never touched, or was removed."""
        policy = self.build()
        _keys(policy, _touches(100))
        for block_id in range(1, 20):
            policy.on_remove(block_id)
        for now_s in (0.0, 150.0, 1e6):
            changed = dict(policy.refresh(now_s))
            assert set(changed) <= set(range(20, 64)), f"at {now_s} s refresh() changed {changed}"

    def test_a_block_that_was_removed_comes_back_as_new(self) -> None:
        """After `on_remove`, a block's earlier use still counted.

        The id is the same, the content is not: frequency, first use and retention of the old one are gone.
        """
        used, fresh = self.build(), self.build()
        for tick in range(1, 9):
            list(used.on_touch(Touch(7, tick, float(tick), 1, True, 5, 100.0)))
        used.on_remove(7)
        again = Touch(7, 20, 20.0, 3, False)
        keys = [dict(policy.on_touch(again))[7] for policy in (used, fresh)]
        assert keys[0] == keys[1], f"key {keys[0]} after a removal, {keys[1]} of a block that is new"

    def test_it_never_outgrows_the_blocks(self) -> None:
        """After many blocks came and went, the policy held more memory than after the first of them.

        Whatever is kept for a block must go with `on_remove`.
        """
        policy, size = self.build(), 0
        for number in range(5_000):
            block_id = 1 + number % 63
            list(policy.on_touch(Touch(block_id, number, float(number), 0, False)))
            list(policy.on_touch(Touch(block_id, number, float(number), 0, True)))
            policy.on_remove(block_id)
            if number == 500:
                size = footprint_bytes(policy)
        grown = footprint_bytes(policy)
        assert grown <= 1.5 * size, f"{size} bytes after 500 blocks, {grown} after 5,000"

    def test_every_block_can_be_evicted_from_a_pool(self) -> None:
        """In a pool under the built-in index, unreferenced blocks were left that the core could not evict.

        It knows a block by the last key that it was told, and takes the smallest.
        """
        driver = CacheDriver("full", self.index, 2)
        walk(driver, random.Random(5), 400)
        assert driver.watched[0].removed, "nothing was evicted"
        driver.reset()
        assert driver.kv.pools[0].blocks.count(BlockState.CACHED) == 0, "blocks are left after a reset"

    def test_the_tail_of_a_sequence_goes_first(self) -> None:
        """Of blocks published by one commit, one nearer to the start of its sequence went before a deeper one.

        What lies behind an evicted block can no longer be found, so evicting from the start wastes the rest.
        """
        self.require("tail_first")
        policy, depths = self.build(LARGE), [*range(71), 1_000]
        keys = _keys(policy, [Touch(10 + place, 1, 1.0, depth, False) for place, depth in enumerate(depths)])
        order = [depths[block_id - 10] for block_id in sorted(keys, key=lambda block_id: keys[block_id])]
        assert order == depths[::-1], f"evicted in the order of the depths {order}"

    @pytest.mark.parametrize("commits", COMMITS)
    def test_a_block_that_is_used_again_goes_later(self, commits: str) -> None:
        """A hit did not move a block behind those that were used before it.

        A commit's tick is larger than those before it, by one or by many; its time may be the same, or differ in the
        millisecond after a day of running.
        """
        self.require("recency")
        made = COMMITS[commits]
        published, used = made[: len(made) // 2], made[len(made) // 2 :]
        touches = [Touch(block_id, *published[block_id - 1], 0, False) for block_id in range(1, len(published) + 1)]
        again = range(len(published) - 1, 0, -2)
        touches += [Touch(block_id, *commit, 0, True) for block_id, commit in zip(again, used)]
        keys = _keys(self.build(), touches)
        order = sorted(keys, key=lambda block_id: keys[block_id])
        expected = [*(block_id for block_id in range(1, len(published) + 1) if block_id not in again), *again]
        assert order == expected, f"evicted in the order {order}, blocks {list(again)} were used last, in this order"

    def test_larger_retention_is_kept_longer(self) -> None:
        """Of blocks with the retention priorities -1, 0, 1 and 5, one went before another of a lower priority.

        Requests bring any whole number, negative ones too, and each step of it counts.
        """
        self.require("retention")
        priorities = (5, 1, 0, -1)
        touches = [Touch(10 + p, tick, float(tick), 0, False, p) for tick, p in enumerate(priorities, start=1)]
        keys = _keys(self.build(), touches)
        order = [block_id - 10 for block_id in sorted(keys, key=lambda block_id: keys[block_id])]
        assert order == [-1, 0, 1, 5], f"evicted in the order of the priorities {order}"

    def test_retention_holds_until_it_expires(self) -> None:
        """A block of larger retention_priority went before others, or was still kept after its retention_ttl_s.

        Expiry is a change by time alone, so `refresh` returns it. No time limit means for ever.
        """
        self.require("retention")
        policy = self.build()
        touches = [Touch(1, 1, 1.0, 0, False, 5, 10.0), Touch(2, 1, 1.0, 0, False, 5), Touch(3, 2, 2.0, 0, False)]
        keys = _keys(policy, touches)
        keys.update(policy.refresh(10.5))
        assert keys[3] == min(keys.values()), f"{keys}: block 3 has no retention"
        keys.update(policy.refresh(11.5))
        assert keys[1] == min(keys.values()), f"{keys}: the retention of block 1, the oldest, ended at 11 s"
        assert keys[2] == max(keys.values()), f"{keys}: the retention of block 2 never ends"

    # ---- machinery ----

    def require(self, flag: str) -> None:
        """Skips the test unless the flag is declared."""
        if flag not in self.capabilities.flags:
            pytest.skip(f"{flag} is not declared")

    def build(self, context: CacheContext = CONTEXT) -> EvictionPolicy:
        """The policy under test."""
        policy = self.make_config().build(context)
        assert isinstance(policy, EvictionPolicy), f"build() returned a {type(policy).__name__}, not an EvictionPolicy"
        return policy

    def index(self, context: CacheContext) -> PrefixCache:
        """The built-in index `hash` with this policy."""
        policy = PluginChoice(self.info.kind, self.info.name, self.make_config())
        cache = build_choice(default_registry().get("cache", "hash").info, {"eviction": policy}).build(context)
        assert isinstance(cache, PrefixCache), f"{cache!r}"
        return cache


def _touches(count: int) -> list[Touch]:
    """Uses of blocks 1..63: each is published before it is hit, time and ticks go on."""
    rng = random.Random(3)
    made = [Touch(b, b // 4, b / 4, b % 4, False, rng.randrange(2), rng.choice([None, 50.0])) for b in range(1, 64)]
    for number in range(count):
        block_id, tick = rng.randrange(1, 64), 20 + number // 3
        made.append(Touch(block_id, tick, float(tick), block_id % 4, rng.random() < 0.7))
    return made


def _keys(policy: EvictionPolicy, touches: Sequence[Touch] | Iterable[Touch]) -> dict[int, EvictionKey]:
    """The last key of each block."""
    keys: dict[int, EvictionKey] = {}
    for touch in touches:
        keys.update(policy.on_touch(touch))
        keys.update(policy.refresh(touch.now_s))
    return keys
