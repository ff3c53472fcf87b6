"""Ownership of the KV blocks of one page size: every block is in exactly one state, and the counts always add up.

    free -> active -> cached -> free            cached -> active (hit)
              |  ^---- in_transfer ----^        active -> free (not indexed)

Block 0 is the null block: never allocated, what a table holds where a block has left the window.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import final

import numpy as np

from tokenloom.errors import OutOfMemoryError
from tokenloom.kv.free_blocks import FreeBlocks, FreeRuns, FreeStack

__all__ = ["NULL_BLOCK", "BlockPool", "BlockState"]

NULL_BLOCK = 0


class BlockState(IntEnum):
    """Where a block stands. ACTIVE: referenced; CACHED: unreferenced and indexed."""

    NULL = 0
    FREE = 1
    ACTIVE = 2
    CACHED = 3
    IN_TRANSFER = 4


_RANKS = {
    BlockState.NULL: 0,
    BlockState.FREE: 1,
    BlockState.CACHED: 2,
    BlockState.IN_TRANSFER: 3,
    BlockState.ACTIVE: 4,
}
_SHARED_RANK = 5
_RANK_OF_STATE = bytes.maketrans(bytes(_RANKS), bytes(_RANKS.values()))
_LETTER_OF_RANK = bytes.maketrans(bytes(range(6)), b"nfctas")


# Looked up in the enum at each change of a block, they would take as long as the change itself.
_FREE, _ACTIVE, _CACHED, _IN_TRANSFER = BlockState.FREE, BlockState.ACTIVE, BlockState.CACHED, BlockState.IN_TRANSFER


@final
class BlockPool:
    """States and reference counts of blocks 0..num_blocks-1. All operations are O(1), with runs O(log num_blocks)."""

    def __init__(self, num_blocks: int, *, in_runs: bool = False) -> None:
        """`in_runs` keeps free blocks so that runs of neighbours can be allocated, too.

        Raises:
            OutOfMemoryError: the host has no memory to keep account of so many blocks.
        """
        assert num_blocks >= 2, f"a pool needs the null block and one more, got {num_blocks}"
        self.num_blocks = num_blocks
        try:
            self._ref_counts = [0] * num_blocks
            self._states = bytearray([BlockState.FREE]) * num_blocks
            self._runs = FreeRuns(num_blocks) if in_runs else None
            self._free: FreeBlocks = FreeStack(num_blocks) if self._runs is None else self._runs
        except MemoryError as error:
            raise OutOfMemoryError(
                f"{num_blocks} KV blocks are more than this machine has memory to keep account of; lower "
                "cache.num_blocks, or raise cache.block_size"
            ) from error
        self._states[NULL_BLOCK] = BlockState.NULL
        self._counts = [0] * len(BlockState)
        self._counts[BlockState.NULL] = 1
        self._counts[BlockState.FREE] = num_blocks - 1

    @property
    def num_usable(self) -> int:
        """Blocks that requests can hold: all but the null block."""
        return self.num_blocks - 1

    def count(self, state: BlockState) -> int:
        """Number of blocks in a state."""
        return self._counts[state]

    def ref_count(self, block_id: int) -> int:
        """How many holders a block has."""
        return self._ref_counts[block_id]

    def num_sole(self, block_ids: Iterable[int]) -> int:
        """How many of these blocks have one holder."""
        return list(map(self._ref_counts.__getitem__, block_ids)).count(1)

    def state(self, block_id: int) -> BlockState:
        """State of a block."""
        return BlockState(self._states[block_id])

    def map(self, max_cells: int) -> str:
        """All blocks in order, a letter each: n null, f free, c cached, t in transfer, a active, s active and shared.

        Of more than `max_cells`, a letter stands for equally many and shows the last one in this list. O(num_blocks).
        """
        ranks = self._states.translate(_RANK_OF_STATE)
        for block_id, refs in enumerate(self._ref_counts):
            if refs > 1:
                ranks[block_id] = _SHARED_RANK
        num_merged = -(-self.num_blocks // max_cells)
        if num_merged > 1:
            ranks = bytearray(max(ranks[start : start + num_merged]) for start in range(0, len(ranks), num_merged))
        return ranks.translate(_LETTER_OF_RANK).decode()

    def ids(self, state: BlockState) -> list[int]:
        """Every block in a state; O(num_blocks), but quick."""
        ids: list[int] = np.flatnonzero(np.frombuffer(self._states, np.uint8) == state).tolist()
        return ids

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated as they are."""
        return self._counts[_FREE]

    def is_cached(self, block_id: int) -> bool:
        """Whether a block is unreferenced and indexed."""
        return self._states[block_id] == _CACHED

    def allocate(self) -> int:
        """Takes a free block; its reference count becomes 1."""
        assert len(self._free), "allocate() on a pool without free blocks"
        block_id = self._free.pop()
        self._hold(block_id)
        return block_id

    def allocate_run(self, start: int, count: int) -> list[int]:
        """Takes the free blocks start .. start + count - 1; the reference count of each becomes 1."""
        self.free_runs.take(start, count)
        for block_id in range(start, start + count):
            self._hold(block_id)
        return list(range(start, start + count))

    @property
    def free_runs(self) -> FreeRuns:
        """The runs of a pool that keeps them."""
        assert self._runs is not None, "a pool that keeps no runs was asked for one"
        return self._runs

    @property
    def longest_free_run(self) -> int:
        """Length of the longest run of neighbouring free blocks; O(num_blocks) in a pool that keeps no runs."""
        if self._runs is not None:
            return self._runs.largest
        runs = re.findall(re.escape(bytes([BlockState.FREE])) + b"+", bytes(self._states))
        return max((len(run) for run in runs), default=0)

    def _hold(self, block_id: int) -> None:
        self._move(block_id, _FREE, _ACTIVE)
        self._ref_counts[block_id] = 1

    def acquire(self, block_id: int) -> None:
        """Adds a holder to an active or cached block."""
        if self._ref_counts[block_id] == 0:
            self._move(block_id, _CACHED, _ACTIVE)
        self._ref_counts[block_id] += 1

    def release(self, block_id: int, is_indexed: bool) -> bool:
        """Takes a holder away; the last one leaves the block cached if it is indexed, else free.

        Returns:
            Whether that was the last holder.
        """
        assert self._ref_counts[block_id] > 0, f"block {block_id} released without a holder"
        self._ref_counts[block_id] -= 1
        if self._ref_counts[block_id] > 0:
            return False
        self._move(block_id, _ACTIVE, _CACHED if is_indexed else _FREE)
        if not is_indexed:
            self._free.push(block_id)
        return True

    def release_for_transfer(self, block_id: int) -> bool:
        """Takes a holder away; the last one leaves the block in transfer.

        Returns:
            Whether that was the last holder.
        """
        assert self._ref_counts[block_id] > 0, f"block {block_id} released without a holder"
        self._ref_counts[block_id] -= 1
        if self._ref_counts[block_id] > 0:
            return False
        self._move(block_id, _ACTIVE, _IN_TRANSFER)
        return True

    def land(self, block_id: int, is_indexed: bool) -> None:
        """Ends a transfer: the block is cached if it is indexed, else free."""
        self._move(block_id, _IN_TRANSFER, _CACHED if is_indexed else _FREE)
        if not is_indexed:
            self._free.push(block_id)

    def evict(self, block_id: int) -> None:
        """Makes a cached block free."""
        self._move(block_id, _CACHED, _FREE)
        self._free.push(block_id)

    def _move(self, block_id: int, source: BlockState, target: BlockState) -> None:
        assert self._states[block_id] == source, (
            f"block {block_id} is {BlockState(self._states[block_id]).name}, expected {source.name}"
        )
        self._states[block_id] = target
        self._counts[source] -= 1
        self._counts[target] += 1

    def check_counts(self) -> None:
        """Checks free + active + cached + in_transfer + null == total. Raises AssertionError."""
        assert sum(self._counts) == self.num_blocks, f"counts {self._counts} do not add up to {self.num_blocks}"
        assert len(self._free) == self._counts[BlockState.FREE], f"{len(self._free)} free, counted {self._counts}"

    def check(self) -> None:
        """Recounts everything. Raises AssertionError at the first divergence."""
        self.check_counts()
        for state in BlockState:
            recount = self._states.count(state)
            assert recount == self._counts[state], f"{state.name}: counted {self._counts[state]}, found {recount}"
        assert sorted(self._free) == self.ids(_FREE), "other blocks are free than the free list says"
        is_active = np.frombuffer(self._states, np.uint8) == _ACTIVE
        for block_id in np.flatnonzero(is_active != (np.array(self._ref_counts) > 0)).tolist():
            refs = self._ref_counts[block_id]
            raise AssertionError(f"block {block_id}: {refs} holders, {self.state(block_id).name}")

    def check_holders(self, tables: Iterable[Sequence[int]]) -> None:
        """Compares the reference counts with all tables that hold blocks. Raises AssertionError."""
        held = [0] * self.num_blocks
        for table in tables:
            for block_id in table:
                held[block_id] += 1
        held[NULL_BLOCK] = 0
        if held == self._ref_counts:
            return
        for block_id, (refs, expected) in enumerate(zip(self._ref_counts, held, strict=True)):
            assert refs == expected, f"block {block_id}: {refs} holders, the tables say {expected}"
