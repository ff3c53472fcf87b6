"""Preempts the request that loses the least work; of equal ones, the one that was admitted last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tokenloom.interfaces.scheduler import SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduling_policy import VictimConfig, VictimPolicy
from tokenloom.request import RequestView

__all__ = ["LeastRecompute", "LeastRecomputeConfig"]


class LeastRecomputeConfig(VictimConfig):
    """No settings."""

    def build(self, context: SchedulerContext) -> VictimPolicy:
        return LeastRecompute()


@final
class LeastRecompute(VictimPolicy):
    """Chooses the candidate with the fewest computed tokens that it did not find in the prefix cache.

    What it found when it was first admitted is likely to be there again, since others share it; its own blocks are
    what the pool needs.
    """

    def select(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        return min(reversed(candidates), key=_num_lost, default=None)


def _num_lost(request: RequestView) -> int:
    return max(0, request.num_computed_tokens + request.num_inflight_tokens - request.num_cached_tokens)
