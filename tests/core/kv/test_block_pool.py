"""BlockPool: every block is in one state, and the counts add up after each operation."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tokenloom.errors import OutOfMemoryError
from tokenloom.kv.block_pool import NULL_BLOCK, BlockPool, BlockState


def test_new_pool_keeps_one_null_block_and_frees_the_rest() -> None:
    pool = BlockPool(5)
    assert pool.num_usable == 4
    assert pool.state(NULL_BLOCK) is BlockState.NULL
    assert pool.count(BlockState.FREE) == 4
    assert sorted(pool.allocate() for _ in range(4)) == [1, 2, 3, 4]
    pool.check()


@pytest.mark.parametrize("in_runs", [False, True])
def test_more_blocks_than_can_be_accounted_for_are_refused(in_runs: bool) -> None:
    with pytest.raises(OutOfMemoryError, match=r"10000000000000 KV blocks are more than .* lower cache\.num_blocks"):
        BlockPool(10**13, in_runs=in_runs)


def test_the_map_shows_each_block_or_the_busiest_of_several() -> None:
    pool = BlockPool(7)
    free, active, shared, cached, moving = (pool.allocate() for _ in range(5))
    pool.release(free, is_indexed=False)
    pool.acquire(shared)
    pool.release(cached, is_indexed=True)
    pool.release_for_transfer(moving)
    letters = {free: "f", active: "a", shared: "s", cached: "c", moving: "t", NULL_BLOCK: "n"}
    whole = "".join(letters.get(block_id, "f") for block_id in range(7))
    assert pool.map(7) == pool.map(1000) == whole
    ranks = "nfctas"
    assert pool.map(3) == "".join(max(whole[i : i + 3], key=ranks.index) for i in (0, 3, 6))
    assert pool.map(1) == "s"


def test_release_of_a_shared_block_frees_it_only_with_its_last_holder() -> None:
    pool = BlockPool(3)
    block_id = pool.allocate()
    pool.acquire(block_id)
    assert not pool.release(block_id, is_indexed=False)
    assert pool.state(block_id) is BlockState.ACTIVE
    assert pool.release(block_id, is_indexed=False)
    assert pool.state(block_id) is BlockState.FREE


def test_indexed_block_stays_cached_and_can_be_held_again_or_evicted() -> None:
    pool = BlockPool(3)
    block_id = pool.allocate()
    pool.release(block_id, is_indexed=True)
    assert pool.state(block_id) is BlockState.CACHED
    pool.acquire(block_id)
    assert (pool.state(block_id), pool.ref_count(block_id)) == (BlockState.ACTIVE, 1)
    pool.release(block_id, is_indexed=True)
    pool.evict(block_id)
    assert pool.state(block_id) is BlockState.FREE
    pool.check()


def test_illegal_moves_are_refused() -> None:
    pool = BlockPool(3)
    held = pool.allocate()
    for move in (
        lambda: BlockPool(1),
        lambda: pool.evict(held),
        lambda: pool.acquire(NULL_BLOCK),
        lambda: pool.acquire(2),
        lambda: pool.release(2, is_indexed=False),
        lambda: pool.release(NULL_BLOCK, is_indexed=False),
    ):
        with pytest.raises(AssertionError):
            move()
    pool.allocate()
    with pytest.raises(AssertionError, match="without free blocks"):
        pool.allocate()


def test_check_finds_a_count_that_drifted() -> None:
    pool = BlockPool(3)
    pool.allocate()
    pool._counts[BlockState.ACTIVE] += 1
    pool._counts[BlockState.CACHED] -= 1
    pool.check_counts()
    with pytest.raises(AssertionError, match="ACTIVE: counted 2, found 1"):
        pool.check()
    pool._counts[BlockState.CACHED] += 1
    with pytest.raises(AssertionError, match="do not add up to 3"):
        pool.check_counts()
    pool._counts[BlockState.ACTIVE] -= 1
    pool._free.pop()
    with pytest.raises(AssertionError, match="0 free"):
        pool.check_counts()


class PoolMachine(RuleBasedStateMachine):
    """Random operations against a dict of holders and a set of indexed blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(6)
        self.holders = dict.fromkeys(range(1, 6), 0)
        self.cached: set[int] = set()

    def free(self) -> set[int]:
        return {block_id for block_id, count in self.holders.items() if not count} - self.cached

    @precondition(lambda self: self.free())
    @rule()
    def allocate(self) -> None:
        expected = self.free()
        block_id = self.pool.allocate()
        assert block_id in expected
        self.holders[block_id] = 1

    @rule(block_id=st.integers(1, 5))
    def acquire(self, block_id: int) -> None:
        if block_id not in self.free():
            self.pool.acquire(block_id)
            self.holders[block_id] += 1
            self.cached.discard(block_id)

    @rule(block_id=st.integers(1, 5), is_indexed=st.booleans())
    def release(self, block_id: int, is_indexed: bool) -> None:
        if self.holders[block_id]:
            self.holders[block_id] -= 1
            assert self.pool.release(block_id, is_indexed) == (self.holders[block_id] == 0)
            if is_indexed and not self.holders[block_id]:
                self.cached.add(block_id)

    @rule(block_id=st.integers(1, 5))
    def evict(self, block_id: int) -> None:
        if block_id in self.cached:
            self.pool.evict(block_id)
            self.cached.remove(block_id)

    @invariant()
    def counts_add_up(self) -> None:
        self.pool.check()
        assert sum(self.pool.count(state) for state in BlockState) == self.pool.num_blocks
        assert self.pool.count(BlockState.CACHED) == len(self.cached)
        assert self.pool.count(BlockState.FREE) == len(self.free())
        for block_id, count in self.holders.items():
            assert self.pool.ref_count(block_id) == count


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
