"""Shortest job first, with ageing: what is left to compute counts against how long the request has waited."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Annotated, final

from pydantic import Field

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import Scheduler, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import (
    RequestArrived,
    RequestFinished,
    RequestPreempted,
    SchedulerEvent,
    StepLanded,
)
from tokenloom.interfaces.scheduling_policy import SchedulingPolicy, StepLimits, VictimPolicy
from tokenloom.request import RequestView
from tokenloom.scheduling import PolicyScheduler, WaitingTable, least_first
from tokenloom_schedulers.output_estimate import Estimate, OutputEstimate
from tokenloom_schedulers.prefill_settings import PrefillSettings

__all__ = ["SjfConfig", "SjfPolicy"]


class SjfConfig(PrefillSettings):
    """Settings of the sjf scheduler."""

    estimate: Estimate = Field(
        default="cap",
        description="How long an output will be: cap (max_tokens), or tenant_mean (of the tenant's requests so far).",
    )
    max_wait_s: Annotated[float, Field(gt=0)] | None = Field(
        default=60.0,
        description="A request that arrived longer ago than this goes before shorter ones, in seconds; null: never.",
    )
    victim: PluginChoice = Field(description="Whom to preempt when KV blocks run out.")

    def build(self, context: SchedulerContext) -> Scheduler:
        return PolicyScheduler(SjfPolicy(self, self.victim.build(context)), self.admission.build(context))


@final
class SjfPolicy(SchedulingPolicy):
    """Admits the highest response ratio next, (1 + tokens waited) / tokens of work; of equal ones the first to arrive.

    Work is the prompt and the output as predicted on arrival, and again on preemption, when the output so far counts as
    prompt. Time is counted in tokens that the engine computed meanwhile, so that the order depends on no step time.
    What lowers the mean time to the end is serving short requests first; the ratio grows fastest for them, but grows
    for all. Running requests go on in order of admission: nobody is preempted for being long.

    Bound on waiting: a request that arrived `max_wait_s` ago is passed by nobody who arrived later. With null there is
    none.

    Source: P. Brinch Hansen, "An analysis of response ratio scheduling", IFIP 1971.
    """

    def __init__(self, config: SjfConfig, victims: VictimPolicy) -> None:
        self._limits = config.step_limits()
        self._max_wait_s = math.inf if config.max_wait_s is None else config.max_wait_s
        self._output = OutputEstimate(config.estimate)
        self._victims = victims
        self._num_computed = 0
        self._jobs: dict[str, tuple[int, float]] = {}
        """request_id -> (tokens that had been computed when it arrived, its work)."""
        self._waiting = WaitingTable(2, self._job)

    def order(self, requests: Sequence[RequestView], view: SchedulerView) -> Iterable[RequestView]:
        return requests if requests is view.running else self._by_ratio(requests, view)

    def _by_ratio(self, waiting: Sequence[RequestView], view: SchedulerView) -> Iterator[RequestView]:
        rows = self._waiting.rows(waiting, view)
        # They wait in order of arrival, so those that are due are the first.
        num_due = bisect_right(rows.requests, view.now_s - self._max_wait_s, key=_arrival_s)
        yield from islice(rows.requests, num_due)
        arrived_at, work = rows.columns[:, num_due:]
        # One token more than it waited, so that the least work comes first among those that have just arrived.
        for index in least_first((arrived_at - self._num_computed - 1) / work):
            yield rows.requests[num_due + index]

    def _job(self, request: RequestView) -> tuple[int, float]:
        return self._jobs.get(request.request_id) or (self._num_computed, self._work(request))

    def _work(self, request: RequestView) -> float:
        return request.num_tokens + self._output.num_left(request)

    def step_limits(self, view: SchedulerView) -> StepLimits:
        return self._limits

    def select_victim(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        return self._victims.select(request, candidates, view)

    def observe(self, event: SchedulerEvent) -> None:
        if isinstance(event, RequestArrived):
            self._jobs[event.request.request_id] = (self._num_computed, self._work(event.request))
        elif isinstance(event, RequestPreempted):
            arrived_at, _ = self._jobs[event.request.request_id]
            self._jobs[event.request.request_id] = (arrived_at, self._work(event.request))
        elif isinstance(event, RequestFinished):
            self._jobs.pop(event.request.request_id, None)
            self._output.observe(event)
        elif isinstance(event, StepLanded):
            self._num_computed += event.num_tokens
        self._waiting.observe(event)


def _arrival_s(request: RequestView) -> float:
    return request.arrival_time_s
