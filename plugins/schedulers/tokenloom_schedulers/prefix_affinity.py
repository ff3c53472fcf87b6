"""Longest cached prefix first: requests whose beginning lies in the prefix cache come before it is evicted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Annotated, final

from pydantic import Field

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import RequestAdmitted, RequestFinished, SchedulerEvent
from tokenloom.interfaces.scheduling_policy import SchedulingPolicy, StepLimits, VictimPolicy
from tokenloom.request import RequestView
from tokenloom.scheduling import PolicyScheduler, WaitingOrder
from tokenloom_schedulers.prefill_settings import Count, PrefillSettings

__all__ = ["PrefixAffinityConfig", "PrefixAffinityPolicy"]


class PrefixAffinityConfig(PrefillSettings):
    """Settings of the prefix_affinity scheduler."""

    window: Count = Field(
        default=128, description="How many of the oldest waiting requests are looked up in the cache and reordered."
    )
    max_overtakes: Count = Field(default=64, description="A request overtaken so often goes first.")
    max_wait_s: Annotated[float, Field(gt=0)] | None = Field(
        default=30.0, description="A request that arrived longer ago than this goes first, in seconds; null: never."
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
    nobody but such requests that are older. With null for the latter, only the former counts.
    """

    def __init__(self, config: PrefixAffinityConfig, victims: VictimPolicy) -> None:
        self._limits = config.step_limits()
        self._config = config
        self._victims = victims
        self._waiting = WaitingOrder[RequestView]()
        self._overtakes: dict[str, int] = {}
        """request_id -> how often it was overtaken, if it was."""

    def order(self, requests: Sequence[RequestView], view: SchedulerView) -> Iterable[RequestView]:
        return requests

    def sequence(self, view: SchedulerView, ledger: Ledger) -> Iterable[RequestView]:
        yield from view.running
        waiting = iter(view.waiting)
        due: list[RequestView] = []
        others: list[RequestView] = []
        for request in islice(waiting, self._config.window):
            (due if self._is_due(request, view) else others).append(request)
        yield from due
        yield from sorted(others, key=lambda request: -ledger.cached_tokens(request))
        yield from waiting

    def step_limits(self, view: SchedulerView) -> StepLimits:
        return self._limits

    def select_victim(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        return self._victims.select(request, candidates, view)

    def observe(self, event: SchedulerEvent) -> None:
        if isinstance(event, RequestAdmitted):
            self._count_overtakes(event.request)
        elif isinstance(event, RequestFinished):
            self._overtakes.pop(event.request.request_id, None)
        self._waiting.observe(event)

    def _is_due(self, request: RequestView, view: SchedulerView) -> bool:
        max_wait_s = self._config.max_wait_s
        if max_wait_s is not None and view.now_s - request.arrival_time_s >= max_wait_s:
            return True
        return self._overtakes.get(request.request_id, 0) >= self._config.max_overtakes

    def _count_overtakes(self, admitted: RequestView) -> None:
        """Whoever arrived before one that is admitted was overtaken; those behind the window keep their order."""
        for request in islice(self._waiting, min(self._waiting.place(admitted), self._config.window)):
            self._overtakes[request.request_id] = self._overtakes.get(request.request_id, 0) + 1
