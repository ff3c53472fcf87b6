"""Free blocks as a stack and as runs, against a plain set."""

from __future__ import annotations

import random

import pytest

from tokenloom.kv.block_pool import BlockPool
from tokenloom.kv.free_blocks import FreeBlocks, FreeRuns, FreeStack


def runs_of(free: set[int]) -> list[tuple[int, int]]:
    """(start, length) of the maximal runs of a set."""
    starts = sorted(block for block in free if block - 1 not in free)
    return [(start, next(n for n in range(1, len(free) + 2) if start + n not in free)) for start in starts]


@pytest.mark.parametrize("build", [FreeStack, FreeRuns])
def test_low_ids_come_out_first_and_every_block_once(build: type[FreeStack | FreeRuns]) -> None:
    free: FreeBlocks = build(6)
    assert sorted(free) == [1, 2, 3, 4, 5]
    assert [free.pop() for _ in range(5)] == [1, 2, 3, 4, 5]
    assert (len(free), list(free)) == (0, [])
    free.push(3)
    assert (free.pop(), len(free)) == (3, 0)


@pytest.mark.parametrize("num_blocks", [2, 3, 8, 9, 33])
@pytest.mark.parametrize("seed", range(8))
def test_runs_agree_with_a_set_under_random_use(num_blocks: int, seed: int) -> None:
    rng = random.Random(f"{num_blocks} {seed}")
    runs, free = FreeRuns(num_blocks), set(range(1, num_blocks))
    for _ in range(150):
        taken = sorted(set(range(1, num_blocks)) - free)
        if free and (not taken or rng.random() < 0.5):
            count = rng.randrange(1, num_blocks)
            fits = [start for start, length in runs_of(free) if length >= count]
            assert runs.first_fit(count) == (fits[0] if fits else None)
            start, length = rng.choice(runs_of(free))
            first = rng.randrange(start, start + length)
            size = rng.randrange(1, start + length - first + 1)
            runs.take(first, size)
            free -= set(range(first, first + size))
        elif taken:
            block = rng.choice(taken)
            runs.push(block)
            free.add(block)
        assert sorted(runs) == sorted(free)
        assert (len(runs), runs.largest) == (len(free), max((length for _, length in runs_of(free)), default=0))


def test_copy_goes_its_own_way() -> None:
    runs = FreeRuns(9)
    other = runs.copy()
    other.take(3, 4)
    assert (runs.largest, other.largest) == (8, 2)
    runs.take(1, 8)
    other.push(4)
    assert (list(runs), sorted(other)) == ([], [1, 2, 4, 7, 8])


def test_blocks_that_are_not_free_are_not_taken() -> None:
    runs = FreeRuns(9)
    runs.take(3, 2)
    with pytest.raises(AssertionError, match="not all free"):
        runs.take(2, 2)
    with pytest.raises(AssertionError):
        runs.take(4, 1)


def test_pool_allocates_runs_and_single_blocks_and_joins_what_comes_back() -> None:
    pool = BlockPool(10, in_runs=True)
    first, second = pool.allocate_run(1, 3), pool.allocate_run(4, 3)
    assert (first, second, pool.allocate()) == ([1, 2, 3], [4, 5, 6], 7)
    pool.check()
    for block_id in (2, 1, 3):
        pool.release(block_id, is_indexed=False)
    assert pool.longest_free_run == 3
    for block_id in second:
        pool.release(block_id, is_indexed=False)
    assert pool.longest_free_run == 6
    pool.check()


def test_pool_without_runs_counts_its_longest_free_run_and_gives_none() -> None:
    pool = BlockPool(6)
    for _ in range(3):
        pool.allocate()
    pool.release(2, is_indexed=False)
    assert pool.longest_free_run == 2
    with pytest.raises(AssertionError, match="keeps no runs"):
        pool.allocate_run(4, 1)
