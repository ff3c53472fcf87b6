"""Preempts the request that holds the most memory, so that few have to be preempted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tokenloom.interfaces.scheduler import SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduling_policy import VictimConfig, VictimPolicy
from tokenloom.request import RequestView

__all__ = ["MostBlocks", "MostBlocksConfig"]


class MostBlocksConfig(VictimConfig):
    """No settings."""

    def build(self, context: SchedulerContext) -> VictimPolicy:
        return MostBlocks(context.block_size)


@final
class MostBlocks(VictimPolicy):
    """Chooses the candidate with the most KV blocks; of equal ones, the one that was admitted last.

    A view does not tell how many blocks a request holds. They are taken to be those of its computed tokens, which
    counts shared blocks as its own, and those that left an attention window as held.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    def select(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        return max(reversed(candidates), key=self._num_blocks, default=None)

    def _num_blocks(self, request: RequestView) -> int:
        return -(-(request.num_computed_tokens + request.num_inflight_tokens) // self._block_size)
