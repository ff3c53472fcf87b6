"""What a ledger has counted so far in its step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from tokenloom.batch import Preemption, PreemptMode
from tokenloom.interfaces.scheduler import Grant
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

    def copy(self) -> LedgerState:
        return LedgerState(
            self.tokens,
            self.slots,
            list(self.available),
            list(self.pending),
            dict(self.grants),
            dict(self.new_blocks),
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
