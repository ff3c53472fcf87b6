"""Which of each request's blocks were offered to the prefix index, and the offering of those that have become full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from tokenloom.clock import Clock
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.kv.pool import KVPool
from tokenloom.kv.request_keys import RequestKeys
from tokenloom.request import Request

__all__ = ["PublishedBlocks"]


@final
@dataclass(slots=True)
class _Published:
    """Of one request.

    Attributes:
        counts: blocks of each KV group.
        due: computed tokens from which on there are more; 0 before that is known.
    """

    counts: list[int]
    due: int = 0


@final
class PublishedBlocks:
    """Of all requests that hold memory.

    Args:
        groups: the KV groups.
        pools: the pool of each.
        keys: gives the keys of full blocks.
        block_size: tokens of a block.
        clock: tells the pools when.
    """

    def __init__(
        self, groups: Sequence[KVGroupSpec], pools: Sequence[KVPool], keys: RequestKeys, block_size: int, clock: Clock
    ) -> None:
        self._groups = tuple(groups)
        self._pools = tuple(pools)
        self._keys = keys
        self._block_size = block_size
        self._clock = clock
        self._of: dict[str, _Published] = {}

    def __len__(self) -> int:
        """Number of requests."""
        return len(self._of)

    def start(self, request_id: str, counts: Sequence[int]) -> None:
        """A request has been admitted; so many leading blocks of each group need not be offered."""
        self._of[request_id] = _Published(list(counts))

    def forget(self, request_id: str) -> None:
        """A request has given its blocks back."""
        self._of.pop(request_id, None)

    def publish(self, request: Request, tables: Sequence[Sequence[int]]) -> None:
        """Indexes every full block below the computed frontier that was not offered yet; `tables` are its own."""
        published = self._of[request.request_id]
        if request.num_computed_tokens < published.due:
            return
        num_known, size = min(request.num_computed_tokens, request.num_tokens), self._block_size
        for index, (group, pool, first) in enumerate(zip(self._groups, self._pools, published.counts, strict=True)):
            num_full = (num_known - group.lookahead) // size
            if first < num_full:
                keys = self._keys.first(request, index, num_full)
                pool.publish_from(first, keys, tables[index], request, self._clock.now())
                published.counts[index] = num_full
        counts = zip(published.counts, self._groups, strict=True)
        published.due = min((count + 1) * size + group.lookahead for count, group in counts)
