"""Who holds which blocks within one step: by the tables, and by what its ledger has pinned and released so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tokenloom.kv.block_pool import NULL_BLOCK
from tokenloom.kv.manager import KVManager, PrefixMatch
from tokenloom.request import RequestStatus, RequestView
from tokenloom.scheduling.ledger_state import LedgerState

__all__ = ["HeldBlocks"]


@final
class HeldBlocks:
    """Reads a `KVManager` and the state of a ledger over it; changes neither."""

    def __init__(self, kv: KVManager) -> None:
        self._kv = kv
        self._num_groups = [kv.pool_of_group.count(pool) for pool in range(len(kv.pools))]

    def in_table(self, request_id: str, first: int = 0) -> list[tuple[int, int]]:
        """(pool, block id) of what a request holds from block `first` of its tables on."""
        return [
            (pool, block_id)
            for group, pool in enumerate(self._kv.pool_of_group)
            for block_id in self._kv.tables(request_id)[group][first:]
            if block_id != NULL_BLOCK
        ]

    def num_holders(self, pool: int, block_id: int, state: LedgerState) -> int:
        """How many requests hold a block."""
        return self._kv.pools[pool].blocks.ref_count(block_id) + state.holders.get((pool, block_id), 0)

    def pins(self, match: PrefixMatch, state: LedgerState) -> list[tuple[int, int, bool]]:
        """(pool, block id, whether that makes one available block less) of the blocks that a waiting request found."""
        return [
            (pool, block_id, self.num_holders(pool, block_id, state) == 0 and (pool, block_id) not in state.leaving)
            for group, pool in enumerate(self._kv.pool_of_group)
            for block_id in match.block_ids[group]
            if block_id != NULL_BLOCK
        ]

    def per_group(self, counts: Sequence[int]) -> int:
        """What counts of blocks by pool are worth to each KV group, in the tightest pool."""
        return min(count // num_groups for count, num_groups in zip(counts, self._num_groups, strict=True))

    def span(self, request: RequestView, state: LedgerState) -> int:
        """See `Ledger.num_blocks`."""
        granted = state.spans.get(request.request_id, 0)
        if request.status is not RequestStatus.RUNNING:
            return granted
        return max(granted, *map(len, self._kv.tables(request.request_id)))

    def num_own(self, request: RequestView, match: PrefixMatch | None, state: LedgerState) -> int:
        """See `Ledger.num_own_blocks`; `match` is what a request found that starts in this step."""
        counts = list(state.new_blocks.get(request.request_id, (0,) * len(self._kv.pools)))
        tables = self._kv.tables(request.request_id) if match is None else match.block_ids
        for pool, table in zip(self._kv.pool_of_group, tables, strict=True):
            blocks = self._kv.pools[pool].blocks
            counts[pool] += blocks.num_sole(table)
            changed = {block_id for changed_pool, block_id in state.holders if changed_pool == pool}
            for block_id in changed.intersection(table) if changed else ():
                num_now = self.num_holders(pool, block_id, state)
                counts[pool] += (num_now == 1) - (blocks.ref_count(block_id) == 1)
        return self.per_group(counts)
