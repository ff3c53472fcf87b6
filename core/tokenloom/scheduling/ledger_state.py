"""What a ledger has counted so far in its step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import final

from tokenloom.batch import Preemption, PreemptMode
from tokenloom.interfaces.scheduler import Grant, Shortfall
from tokenloom.scheduling.run_placement import RunPlacement

__all__ = ["LedgerState"]


@final
@dataclass(slots=True)
class LedgerState:
    """Everything that a rollback restores."""

    tokens: int
    slots: int
    available: list[int]
    pending: list[int]
    grants: dict[str, Grant] = field(default_factory=dict)
    new_blocks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    spans: dict[str, int] = field(default_factory=dict)
    """Blocks per KV group that the table of a request with a grant will span."""
    preemptions: dict[str, Preemption] = field(default_factory=dict)
    holders: dict[tuple[int, int], int] = field(default_factory=dict)
    """(pool, block id) -> holders gained (pins) minus holders lost (preemptions) in this step."""
    host_bytes: int = 0
    """Room left in host memory."""
    num_refused_swaps: int = 0
    modes: dict[str, PreemptMode] = field(default_factory=dict)
    """What really happens to each victim's KV: a swap without room is a recompute."""
    in_use: set[tuple[int, int]] = field(default_factory=set)
    """(pool, block id) of victims' blocks that a transfer or a step in flight still uses, whoever else holds them."""
    leaving: set[tuple[int, int]] = field(default_factory=set)
    """Those of them that nobody holds: they are pending until the step lands."""
    runs: RunPlacement | None = None
    placements: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def lacking(self, needed: Sequence[int], pins: Sequence[tuple[int, int, bool]]) -> Shortfall | None:
        """Which blocks lack, if any do.

        Args:
            needed: blocks to allocate per pool.
            pins: (pool, block id, whether that makes one available block less) of blocks to pin.
        """
        for pool, count in enumerate(needed):
            missing = count + sum(1 for pinned_pool, _, is_available in pins if pinned_pool == pool and is_available)
            if missing > self.available[pool]:
                return Shortfall("blocks", missing - self.available[pool], self.pending[pool])
        return None

    def grant(self, request_id: str, num_tokens: int, num_cached: int, span: int, needed: tuple[int, ...]) -> Grant:
        """Takes tokens and blocks for a request.

        Args:
            request_id: whose.
            num_tokens: new tokens.
            num_cached: tokens that it found.
            span: blocks per KV group that its table will span.
            needed: blocks to allocate per pool; () if there are none.
        """
        grant = self.grants[request_id] = _make_grant(request_id, num_tokens, sum(needed) if needed else 0, num_cached)
        self.tokens -= num_tokens
        self.spans[request_id] = span
        if needed:
            self.new_blocks[request_id] = needed
            for pool, count in enumerate(needed):
                self.available[pool] -= count
        return grant

    def copy(self) -> LedgerState:
        return LedgerState(
            self.tokens,
            self.slots,
            list(self.available),
            list(self.pending),
            dict(self.grants),
            dict(self.new_blocks),
            dict(self.spans),
            dict(self.preemptions),
            dict(self.holders),
            self.host_bytes,
            self.num_refused_swaps,
            dict(self.modes),
            set(self.in_use),
            set(self.leaving),
            None if self.runs is None else self.runs.copy(),
            dict(self.placements),
        )


@lru_cache(maxsize=4096)
def _make_grant(request_id: str, num_tokens: int, num_new_blocks: int, num_cached_tokens: int) -> Grant:
    """A decoding request has the same grant in most steps."""
    return Grant(request_id, num_tokens, num_new_blocks, num_cached_tokens)
