"""Preempts the request that was admitted last: it has lost the least time in line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tokenloom.interfaces.scheduler import SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduling_policy import VictimConfig, VictimPolicy
from tokenloom.request import RequestView

__all__ = ["LastIn", "LastInConfig"]


class LastInConfig(VictimConfig):
    """No settings."""

    def build(self, context: SchedulerContext) -> VictimPolicy:
        return LastIn()


@final
class LastIn(VictimPolicy):
    """Chooses the last candidate in order of admission, the requester included."""

    def select(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        return candidates[-1] if candidates else None
