"""Urgent requests first: those that run are displaced by more urgent ones, and waiting makes urgent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerContext, SchedulerView, Shortfall
from tokenloom.interfaces.scheduler_events import SchedulerEvent
from tokenloom.interfaces.scheduling_policy import SchedulingPolicy, StepLimits, VictimPolicy
from tokenloom.request import RequestView
from tokenloom.scheduling import PolicyScheduler, WaitingTable, least_first
from tokenloom_schedulers.prefill_settings import PrefillSettings

__all__ = ["PriorityConfig", "PriorityPolicy"]


class PriorityConfig(PrefillSettings):
    """Settings of the priority scheduler."""

    ageing_s: Annotated[float, Field(gt=0)] | None = Field(
        default=10.0,
        description="Seconds of waiting that make up for one level of priority; null is strict, and may starve.",
    )
    victim: PluginChoice = Field(description="Whom of the less urgent to preempt when KV blocks run out.")

    def build(self, context: SchedulerContext) -> Scheduler:
        return PolicyScheduler(PriorityPolicy(self, self.victim.build(context)), self.admission.build(context))


@final
class PriorityPolicy(SchedulingPolicy):
    """Lower `priority` first, running and waiting alike; at one level, order of arrival.

    With ageing, the order is that of arrival_time_s + priority * ageing_s, which never changes while a request lives.
    A waiting request takes the tokens, slots and blocks of running ones of a larger priority (the last in this order
    first), never of its own. Where a running one lacks blocks, `victim` chooses among those that come after it.

    Bound on waiting: a request of level p is passed only by those of levels below p that arrive within
    (p - their level) * ageing_s after it. Without ageing there is none. Who starts before it while it waits for a
    prefix that another computes takes only what it will not need (`SchedulingPolicy`).
    """

    def __init__(self, config: PriorityConfig, victims: VictimPolicy) -> None:
        self._limits = config.step_limits()
        self._ageing_s = config.ageing_s
        self._victims = victims
        self._waiting = WaitingTable(1, lambda request: (self._urgency(request),))

    def order(self, requests: Sequence[RequestView], view: SchedulerView) -> Iterable[RequestView]:
        return sorted(requests, key=self._urgency)

    def sequence(self, view: SchedulerView, ledger: Ledger) -> Iterator[RequestView]:
        running, rows = view.running, self._waiting.rows(view.waiting, view)
        for index in least_first(np.concatenate([self._urgencies(running), rows.columns[0]])):
            yield running[index] if index < len(running) else rows.requests[index - len(running)]

    def observe(self, event: SchedulerEvent) -> None:
        self._waiting.observe(event)

    def step_limits(self, view: SchedulerView) -> StepLimits:
        return self._limits

    def select_victim(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        place = candidates.index(request)
        own = (self._urgency(request), place)
        others = [other for index, other in enumerate(candidates) if (self._urgency(other), index) > own]
        return self._victims.select(request, others, view) if others else request

    @property
    def is_preemptive(self) -> bool:
        return True

    def select_displaced(
        self, request: RequestView, shortfall: Shortfall, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        own = self._urgency(request)
        less_urgent = [
            other for other in candidates if other.priority > request.priority and self._urgency(other) > own
        ]
        # Of equal ones the last admitted: it loses the least.
        return max(reversed(less_urgent), key=self._urgency, default=None)

    def _urgencies(self, requests: Sequence[RequestView]) -> npt.NDArray[np.float64]:
        priorities = np.array([request.priority for request in requests], np.float64)
        if self._ageing_s is None:
            return priorities
        return np.array([request.arrival_time_s for request in requests], np.float64) + priorities * self._ageing_s

    def _urgency(self, request: RequestView) -> float:
        """The less, the more urgent; of equal ones, those that run, and then those that came first, are."""
        if self._ageing_s is None:
            return request.priority
        return request.arrival_time_s + request.priority * self._ageing_s
