"""First come, first served: running requests go on, waiting ones join in order of arrival."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, final

from pydantic import Field

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerConfig, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import SchedulerEvent
from tokenloom.interfaces.scheduling_policy import SchedulingPolicy, VictimPolicy
from tokenloom.request import RequestView
from tokenloom.scheduling import PolicyScheduler

__all__ = ["FcfsConfig", "FcfsPolicy"]


class FcfsConfig(SchedulerConfig):
    """Settings of the fcfs scheduler."""

    max_chunk_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Most prompt tokens of one request in one step; null leaves only the step's budget."
    )
    victim: PluginChoice = Field(description="Whom to preempt when KV blocks run out.")

    def build(self, context: SchedulerContext) -> Scheduler:
        return PolicyScheduler(FcfsPolicy(self, self.victim.build(context)))


@final
class FcfsPolicy(SchedulingPolicy):
    """Order of arrival, no overtaking, chunks as large as the budget allows."""

    def __init__(self, config: FcfsConfig, victims: VictimPolicy) -> None:
        self._max_chunk_tokens = config.max_chunk_tokens
        self._victims = victims

    def order(self, requests: Sequence[RequestView], view: SchedulerView) -> Iterable[RequestView]:
        return requests

    def admit(self, request: RequestView, view: SchedulerView, ledger: Ledger) -> bool:
        return True

    def chunk(self, request: RequestView, need: int, view: SchedulerView, ledger: Ledger) -> int:
        num_own = need - request.num_drafts
        # The limit keeps long prompts from delaying others; a decoding request's drafts are no such thing.
        if self._max_chunk_tokens is not None and num_own > self._max_chunk_tokens:
            need = self._max_chunk_tokens
        return min(need, ledger.remaining_tokens)

    def select_victim(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        return self._victims.select(request, candidates, view)

    def observe(self, event: SchedulerEvent) -> None:
        """Keeps no state."""
