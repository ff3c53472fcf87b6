"""Admits who fits even if all requests grow to their caps: what memory will be needed is there from the start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tokenloom.interfaces.scheduler import Ledger, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduling_policy import AdmissionConfig, AdmissionPolicy
from tokenloom.request import RequestView

__all__ = ["ReserveAll", "ReserveAllConfig"]


class ReserveAllConfig(AdmissionConfig):
    """No settings."""

    def build(self, context: SchedulerContext) -> AdmissionPolicy:
        return ReserveAll()


@final
class ReserveAll(AdmissionPolicy):
    """Nobody is ever preempted for want of blocks; memory stays unused where outputs end before their caps.

    A request still takes what its longest sequence lacks: its last token's KV is never stored, and drafts are never
    more than the cap leaves room for. Blocks that will leave a window count as if they stayed.
    """

    def num_missing_blocks(
        self, request: RequestView, others: Sequence[RequestView], view: SchedulerView, ledger: Ledger
    ) -> int:
        growth = 0
        for one in (*others, request):
            longest = -(-(one.max_total_tokens - 1) // view.limits.block_size)
            growth += max(0, longest - ledger.num_blocks(one))
        return max(0, growth - ledger.spare_blocks)
