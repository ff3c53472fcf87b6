"""Preempts the least urgent request; of equal ones, the one that was admitted last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tokenloom.interfaces.scheduler import SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduling_policy import VictimConfig, VictimPolicy
from tokenloom.request import RequestView

__all__ = ["LowestPriority", "LowestPriorityConfig"]


class LowestPriorityConfig(VictimConfig):
    """No settings."""

    def build(self, context: SchedulerContext) -> VictimPolicy:
        return LowestPriority()


@final
class LowestPriority(VictimPolicy):
    """Chooses the candidate with the largest `priority`, the requester included."""

    def select(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        return max(reversed(candidates), key=lambda candidate: candidate.priority, default=None)
