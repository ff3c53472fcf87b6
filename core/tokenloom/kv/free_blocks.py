"""The free blocks of a pool: a stack where any block will do, or runs of neighbours where requests want those."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import final

__all__ = ["FreeBlocks", "FreeRuns", "FreeStack"]


class FreeBlocks(ABC):
    """A set of block ids below `num_blocks`; block 0 is never in it."""

    @abstractmethod
    def pop(self) -> int:
        """Takes one block out; the set must not be empty."""

    @abstractmethod
    def push(self, block_id: int) -> None:
        """Puts a block back that is not in the set."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of free blocks."""

    @abstractmethod
    def __iter__(self) -> Iterator[int]:
        """The free blocks, in no particular order."""


@final
class FreeStack(FreeBlocks):
    """Last in, first out. All operations are O(1)."""

    def __init__(self, num_blocks: int) -> None:
        # Low ids come out first, so that small runs touch little memory.
        self._ids = list(range(num_blocks - 1, 0, -1))

    def pop(self) -> int:
        return self._ids.pop()

    def push(self, block_id: int) -> None:
        self._ids.append(block_id)

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)


@final
class FreeRuns(FreeBlocks):
    """Maximal runs of neighbouring free blocks; neighbours join as they come back. Each operation is O(log num_blocks).

    A tournament tree over block ids holds, at leaf s, the length of the run that starts at block s (0 if none does),
    and in each inner node the largest below it. So the leftmost run that is long enough is found from the root down.

        blocks   0  1  2  3  4  5  6  7        runs: 1..2 and 5..7
        leaves   0  2  0  0  0  3  0  0        first fit of 2 is at 1, of 3 at 5
    """

    def __init__(self, num_blocks: int) -> None:
        self._num_leaves = 1 << (num_blocks - 1).bit_length()
        self._tree = [0] * (2 * self._num_leaves)
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}
        self._num_free = num_blocks - 1
        self._put(1, num_blocks)

    def copy(self) -> FreeRuns:
        """The same runs, to try things on."""
        other = FreeRuns.__new__(FreeRuns)
        other._num_leaves, other._num_free = self._num_leaves, self._num_free
        other._tree, other._end_of, other._start_of = list(self._tree), dict(self._end_of), dict(self._start_of)
        return other

    @property
    def largest(self) -> int:
        """Length of the longest run."""
        return self._tree[1]

    def first_fit(self, count: int) -> int | None:
        """Start of the leftmost run of at least `count` blocks, or None."""
        assert count >= 1, f"a run of {count} blocks"
        if self._tree[1] < count:
            return None
        node = 1
        while node < self._num_leaves:
            node = 2 * node if self._tree[2 * node] >= count else 2 * node + 1
        return node - self._num_leaves

    def take(self, start: int, count: int) -> None:
        """Takes the blocks start .. start + count - 1 out; all of them are free."""
        run = self._run_around(start)
        end = self._end_of[run]
        assert start + count <= end, f"blocks {start} to {start + count - 1} are not all free"
        self._drop(run)
        if run < start:
            self._put(run, start)
        if start + count < end:
            self._put(start + count, end)
        self._num_free -= count

    def pop(self) -> int:
        start = self.first_fit(1)
        assert start is not None, "no block is free"
        self.take(start, 1)
        return start

    def push(self, block_id: int) -> None:
        start, end = block_id, block_id + 1
        if start in self._start_of:
            start = self._drop_ending_at(block_id)
        if end in self._end_of:
            end = self._drop(end)
        self._put(start, end)
        self._num_free += 1

    def __len__(self) -> int:
        return self._num_free

    def __iter__(self) -> Iterator[int]:
        return (block_id for start in sorted(self._end_of) for block_id in range(start, self._end_of[start]))

    def _run_around(self, block_id: int) -> int:
        """Start of the run that holds a block: the last one that starts at it or before it."""
        node = self._num_leaves + block_id
        if not self._tree[node]:
            # Up to the first left neighbour with a run below it, then down to its last one.
            while node % 2 == 0 or not self._tree[node - 1]:
                node //= 2
                assert node > 1, f"block {block_id} is not free"
            node -= 1
            while node < self._num_leaves:
                node = 2 * node + 1 if self._tree[2 * node + 1] else 2 * node
        return node - self._num_leaves

    def _put(self, start: int, end: int) -> None:
        self._end_of[start], self._start_of[end] = end, start
        self._set(start, end - start)

    def _drop(self, start: int) -> int:
        end = self._end_of.pop(start)
        del self._start_of[end]
        self._set(start, 0)
        return end

    def _drop_ending_at(self, end: int) -> int:
        start = self._start_of[end]
        self._drop(start)
        return start

    def _set(self, start: int, length: int) -> None:
        node = self._num_leaves + start
        self._tree[node] = length
        while node > 1:
            node //= 2
            self._tree[node] = max(self._tree[2 * node], self._tree[2 * node + 1])
