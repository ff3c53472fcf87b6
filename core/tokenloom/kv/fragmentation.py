"""How much of the KV memory holds tokens, and what keeps the rest from use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokenloom.kv.block_pool import BlockPool, BlockState

__all__ = ["KVFragmentation", "measure_fragmentation"]


@dataclass(frozen=True, slots=True)
class KVFragmentation:
    """Use of KV memory over all pools. A slot holds one token in one KV group.

    Attributes:
        num_slots: all that requests could hold.
        held_slots: in blocks that requests hold; a block that several hold counts once.
        used_slots: of these, those that hold a computed token.
        num_free_blocks: blocks that nobody holds and no index names.
        largest_free_run: longest run of neighbours among them, in the pool where that is longest.
    """

    num_slots: int
    held_slots: int
    used_slots: int
    num_free_blocks: int
    largest_free_run: int

    @property
    def internal(self) -> float:
        """Internal fragmentation: share of the held slots that hold no token."""
        return 1.0 - self.used_slots / self.held_slots if self.held_slots else 0.0

    @property
    def external(self) -> float:
        """External fragmentation: share of the free blocks outside the longest run. It only hurts who needs runs."""
        return 1.0 - self.largest_free_run / self.num_free_blocks if self.num_free_blocks else 0.0

    @property
    def used_share(self) -> float:
        """Share of all slots that hold a token of a request."""
        return self.used_slots / self.num_slots if self.num_slots else 0.0


def measure_fragmentation(
    pools: Sequence[BlockPool],
    pool_of_group: Sequence[int],
    block_size: int,
    requests: Sequence[tuple[Sequence[Sequence[int]], int]],
) -> KVFragmentation:
    """Measures all pools.

    Args:
        pools: the blocks of each.
        pool_of_group: where each KV group's blocks come from.
        block_size: slots of a block.
        requests: of each that holds memory, its block ids per group (0 is no block) and its computed tokens.
    """
    counts = [
        _used_slots(
            [
                (table, num_tokens)
                for tables, num_tokens in requests
                for group, table in enumerate(tables)
                if pool_of_group[group] == index
            ],
            block_size,
        )
        for index in range(len(pools))
    ]
    return KVFragmentation(
        num_slots=sum(pool.num_usable for pool in pools) * block_size,
        held_slots=sum(num_held for num_held, _ in counts),
        used_slots=sum(num_used for _, num_used in counts),
        num_free_blocks=sum(pool.count(BlockState.FREE) for pool in pools),
        largest_free_run=max(pool.longest_free_run for pool in pools),
    )


def _used_slots(tables: Iterable[tuple[Sequence[int], int]], block_size: int) -> tuple[int, int]:
    """(held slots, used slots) of one pool."""
    used: dict[int, int] = {}
    for table, num_tokens in tables:
        for index, block_id in enumerate(table):
            if block_id:
                own = min(block_size, max(0, num_tokens - index * block_size))
                used[block_id] = max(own, used.get(block_id, 0))
    return len(used) * block_size, sum(used.values())
