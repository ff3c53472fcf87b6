"""Longest cached prefix first: requests whose beginning lies in the prefix cache come before it is evicted."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Annotated, final

from pydantic import Field

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import (
    RequestArrived,
    RequestFinished,
    RequestPreempted,
    SchedulerEvent,
    StepLanded,
)
from tokenloom.interfaces.scheduling_policy import SchedulingPolicy, StepLimits, VictimPolicy
from tokenloom.request import RequestStatus, RequestView
from tokenloom.scheduling import PolicyScheduler
from tokenloom_schedulers.prefill_settings import Count, PrefillSettings

__all__ = ["PrefixAffinityConfig", "PrefixAffinityPolicy"]


class PrefixAffinityConfig(PrefillSettings):
    """Settings of the prefix_affinity scheduler."""

    window: Count = Field(
        default=128, description="How many of the oldest waiting requests are looked up in the cache and reordered."
    )
    max_overtakes: Count = Field(default=64, description="A request overtaken so often goes first.")
    max_wait_s: Annotated[float, Field(gt=0)] = Field(
        default=30.0, description="A request that arrived longer ago than this goes first, in seconds."
    )
    victim: PluginChoice = Field(description="Whom to preempt when KV blocks run out.")

    def build(self, context: SchedulerContext) -> Scheduler:
        return PolicyScheduler(PrefixAffinityPolicy(self, self.victim.build(context)), self.admission.build(context))


@final
class PrefixAffinityPolicy(SchedulingPolicy):
    """Among the oldest `window` waiting requests, the longest cached prefix first; of equal ones the first to arrive.

    Maximises the hit rate of the prefix cache. The rest of the queue comes after the window, in order of arrival, so
    that a step's lookups do not grow with the queue. Running requests go on in order of admission.

    Bound on waiting: a request that was overtaken `max_overtakes` times, or arrived `max_wait_s` ago, is passed by
    nobody but such requests that are older.
    """

    def __init__(self, config: PrefixAffinityConfig, victims: VictimPolicy) -> None:
        self._limits = config.step_limits()
        self._config = config
        self._victims = victims
        self._ranks: dict[str, int] = {}
        self._num_arrived = 0
        self._line: list[tuple[float, int, RequestView]] = []
        """Requests that wait, in order of arrival, and among them some that do not wait any more."""
        self._overtakes: dict[str, int] = {}

    def order(self, requests: Sequence[RequestView], view: SchedulerView) -> Iterable[RequestView]:
        return requests

    def sequence(self, view: SchedulerView, ledger: Ledger) -> Iterable[RequestView]:
        yield from view.running
        waiting = iter(view.waiting)
        window = list(islice(waiting, self._config.window))
        due = [request for request in window if self._is_due(request, view)]
        yield from due
        others = [request for request in window if not self._is_due(request, view)]
        yield from sorted(others, key=lambda request: -ledger.cached_tokens(request))
        yield from waiting

    def step_limits(self, view: SchedulerView) -> StepLimits:
        return self._limits

    def select_victim(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        return self._victims.select(request, candidates, view)

    def observe(self, event: SchedulerEvent) -> None:
        if isinstance(event, RequestArrived):
            self._ranks[event.request.request_id] = self._num_arrived
            self._num_arrived += 1
            self._join(event.request)
        elif isinstance(event, RequestPreempted):
            self._join(event.request)
        elif isinstance(event, RequestFinished):
            self._ranks.pop(event.request.request_id, None)
            self._overtakes.pop(event.request.request_id, None)
        elif isinstance(event, StepLanded):
            self._count_overtakes()

    def _is_due(self, request: RequestView, view: SchedulerView) -> bool:
        if view.now_s - request.arrival_time_s >= self._config.max_wait_s:
            return True
        return self._overtakes.get(request.request_id, 0) >= self._config.max_overtakes

    def _join(self, request: RequestView) -> None:
        entry = (request.arrival_time_s, self._ranks[request.request_id], request)
        insort(self._line, entry, key=lambda place: place[:2])

    def _count_overtakes(self) -> None:
        """Takes those that were admitted out of the line; those before them that still wait were overtaken."""
        end, num_waiting = 0, 0
        while end < len(self._line) and num_waiting < self._config.window:
            num_waiting += _waits(self._line[end][2])
            end += 1
        still_waiting: list[tuple[float, int, RequestView]] = []
        num_admitted = 0
        for entry in reversed(self._line[:end]):
            request = entry[2]
            if _waits(request):
                still_waiting.append(entry)
                if num_admitted:
                    count = self._overtakes.get(request.request_id, 0) + num_admitted
                    self._overtakes[request.request_id] = count
            else:
                num_admitted += request.first_token_time_s is not None or request.status is RequestStatus.RUNNING
        self._line[:end] = reversed(still_waiting)


def _waits(request: RequestView) -> bool:
    return request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
