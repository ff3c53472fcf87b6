"""First come, first served: running requests go on, waiting ones join in order of arrival."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

from pydantic import Field

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import Scheduler, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduling_policy import SchedulingPolicy, StepLimits, VictimPolicy
from tokenloom.request import RequestView
from tokenloom.scheduling import PolicyScheduler
from tokenloom_schedulers.prefill_settings import PrefillSettings

__all__ = ["FcfsConfig", "FcfsPolicy"]


class FcfsConfig(PrefillSettings):
    """Settings of the fcfs scheduler."""

    victim: PluginChoice = Field(description="Whom to preempt when KV blocks run out.")

    def build(self, context: SchedulerContext) -> Scheduler:
        return PolicyScheduler(FcfsPolicy(self, self.victim.build(context)), self.admission.build(context))


@final
class FcfsPolicy(SchedulingPolicy):
    """Order of arrival, no overtaking, chunks as large as the budget allows.

    A request waits for those that arrived before it, and for nobody else, except that shorter prompts pass a long one
    which `max_long_partial_prefills` holds back. While one waits for a prefix that another computes, those behind it
    start with what it will not need, and do not delay it (`SchedulingPolicy`). Running requests go on in order of
    admission.
    """

    def __init__(self, config: FcfsConfig, victims: VictimPolicy) -> None:
        self._limits = config.step_limits()
        self._victims = victims

    def order(self, requests: Sequence[RequestView], view: SchedulerView) -> Iterable[RequestView]:
        return requests

    def step_limits(self, view: SchedulerView) -> StepLimits:
        return self._limits

    def select_victim(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        return self._victims.select(request, candidates, view)
