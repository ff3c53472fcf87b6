"""Admits whoever fits now: most requests end before they are long, and preemption helps where they do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tokenloom.interfaces.scheduler import Ledger, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduling_policy import AdmissionConfig, AdmissionPolicy
from tokenloom.request import RequestView

__all__ = ["Optimistic", "OptimisticConfig"]


class OptimisticConfig(AdmissionConfig):
    """No settings."""

    def build(self, context: SchedulerContext) -> AdmissionPolicy:
        return Optimistic()


@final
class Optimistic(AdmissionPolicy):
    """Keeps nobody out, and so runs the largest batches; how far they grow is not looked at."""

    @property
    def can_refuse(self) -> bool:
        return False

    def num_missing_blocks(
        self, request: RequestView, others: Sequence[RequestView], view: SchedulerView, ledger: Ledger
    ) -> int:
        return 0
