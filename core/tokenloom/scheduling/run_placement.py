"""Where the runs of contiguous reservations go: tried out on a copy of each pool's free runs, block by block.

Whether a run fits depends on where earlier ones were put and whose memory came back before, so a ledger decides the
places itself, and the commit takes them as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

from tokenloom.kv.free_blocks import FreeRuns
from tokenloom.kv.manager import KVManager

__all__ = ["RunPlacement"]


@final
class RunPlacement:
    """The free runs of all pools within one step's ledger."""

    def __init__(self, pool_of_group: Sequence[int], runs: Sequence[FreeRuns]) -> None:
        self._pool_of_group = tuple(pool_of_group)
        self._runs = list(runs)

    @classmethod
    def of(cls, kv: KVManager) -> RunPlacement:
        """The runs that are free before the step."""
        return cls(kv.pool_of_group, [pool.blocks.free_runs.copy() for pool in kv.pools])

    def copy(self) -> RunPlacement:
        """The same state, to come back to."""
        return RunPlacement(self._pool_of_group, [runs.copy() for runs in self._runs])

    def place(self, num_blocks: int) -> tuple[int, ...] | None:
        """Takes the first run of `num_blocks` that fits for each KV group; None, and nothing taken, if one lacks."""
        taken: list[int] = []
        for pool in self._pool_of_group:
            start = self._runs[pool].first_fit(num_blocks)
            if start is None:
                self._put_back(taken, num_blocks)
                return None
            self._runs[pool].take(start, num_blocks)
            taken.append(start)
        return tuple(taken)

    def missing(self, num_blocks: int) -> int:
        """By how many blocks the longest run falls short, in the pool where that is worst; at least 1."""
        return max(1, *(num_blocks - self._runs[pool].largest for pool in self._pool_of_group))

    def free(self, blocks: Iterable[tuple[int, int]]) -> None:
        """Gives blocks back, as (pool, block id)."""
        for pool, block_id in blocks:
            self._runs[pool].push(block_id)

    def _put_back(self, starts: Sequence[int], num_blocks: int) -> None:
        for pool, start in zip(self._pool_of_group, starts, strict=False):
            self.free((pool, block_id) for block_id in range(start, start + num_blocks))
