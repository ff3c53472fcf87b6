"""Least slack first: who is closest to missing a target that can still be met comes next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import SchedulerEvent, StepLanded
from tokenloom.interfaces.scheduling_policy import SchedulingPolicy, StepLimits, VictimPolicy
from tokenloom.request import RequestView
from tokenloom.scheduling import PolicyScheduler, WaitingTable, least_first
from tokenloom_schedulers.prefill_settings import PrefillSettings
from tokenloom_schedulers.step_time import StepTime
from tokenloom_schedulers.tokens_left import num_tokens_left

__all__ = ["DeadlineConfig", "DeadlinePolicy"]

Seconds = Annotated[float, Field(gt=0)]


class DeadlineConfig(PrefillSettings):
    """Settings of the deadline scheduler."""

    default_ttft_slo_s: Seconds = Field(
        default=10.0, description="Target for the first token of requests that bring none, in seconds."
    )
    default_tpot_slo_s: Seconds = Field(
        default=0.2, description="Target per output token of requests that bring none, in seconds."
    )
    max_wait_s: Seconds | None = Field(
        default=60.0,
        description="A request that arrived longer ago than this goes first, hopeless or not, in seconds; null: never.",
    )
    victim: PluginChoice = Field(description="Whom to preempt when KV blocks run out, of those that come later.")

    def build(self, context: SchedulerContext) -> Scheduler:
        return PolicyScheduler(DeadlinePolicy(self, self.victim.build(context)), self.admission.build(context))


@final
class DeadlinePolicy(SchedulingPolicy):
    """Maximises goodput, the requests that meet both targets: least slack first, the hopeless ones last.

    Slack is the time until a request's next token is due (ttft_slo_s after its arrival, then tpot_slo_s after the one
    before) less the time that computing what is left takes, which is learned from the steps that landed. Below zero it
    is hopeless. Requests with one token to compute go first, since they hold memory and cost next to nothing; then
    prompts, running or waiting, by slack; then hopeless prompts in order of arrival. Where blocks lack, `victim`
    chooses among the hopeless requests that come later, or else among all that do.

    Bound on waiting: a request that arrived `max_wait_s` ago comes before all others but older ones. With null there
    is none: the hopeless may wait for ever.
    """

    def __init__(self, config: DeadlineConfig, victims: VictimPolicy) -> None:
        self._limits = config.step_limits()
        self._config = config
        self._victims = victims
        self._step_time = StepTime()
        self._waiting = WaitingTable(3, self._numbers)

    def order(self, requests: Sequence[RequestView], view: SchedulerView) -> Iterable[RequestView]:
        return (requests[index] for index in self._least_slack_first(self._columns(requests), view))

    def sequence(self, view: SchedulerView, ledger: Ledger) -> Iterator[RequestView]:
        running, numbers = view.running, self._columns(view.running)
        is_prompt = numbers[2] > 1
        for index in self._least_slack_first(numbers, view, ~is_prompt):
            yield running[index]
        prompts = np.flatnonzero(is_prompt)
        if not len(prompts) and not view.waiting:
            return
        rows = self._waiting.rows(view.waiting, view)
        for index in self._least_slack_first(np.concatenate([numbers[:, prompts], rows.columns], axis=1), view):
            yield running[prompts[index]] if index < len(prompts) else rows.requests[index - len(prompts)]

    def step_limits(self, view: SchedulerView) -> StepLimits:
        return self._limits

    def select_victim(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        places, values = (part.tolist() for part in self._ranks(self._columns(candidates), view))
        ranks = list(zip(places, values, range(len(candidates)), strict=True))
        own = ranks[candidates.index(request)]
        # By the order in which they are served, or two requests could take each other's memory for ever.
        later = [(rank, other) for rank, other in zip(ranks, candidates, strict=True) if rank > own]
        hopeless = [other for rank, other in later if rank[0] == _HOPELESS]
        return self._victims.select(request, hopeless or [other for _, other in later], view) if later else request

    def observe(self, event: SchedulerEvent) -> None:
        if isinstance(event, StepLanded):
            self._step_time.observe(event.num_tokens, event.duration_s)
        self._waiting.observe(event)

    def _least_slack_first(
        self, numbers: _Numbers, view: SchedulerView, among: npt.NDArray[np.bool_] | None = None
    ) -> Iterator[int]:
        """Indices of requests (of those `among` which) in the order in which they are served; each has a column."""
        places, values = self._ranks(numbers, view)
        for place in (_OVERDUE, _IN_TIME, _HOPELESS):
            is_here = places == place
            yield from least_first(values, is_here if among is None else is_here & among)

    def _ranks(self, numbers: _Numbers, view: SchedulerView) -> tuple[_Numbers, _Numbers]:
        """Of each request its class, and its place within that, less is sooner."""
        arrived_s, due_s, num_left = numbers
        num_steps = -(-num_left // view.limits.max_num_batched_tokens)
        # The time left if a request got all of every step.
        slack_s = due_s - view.now_s - num_left * self._step_time.per_token_s - num_steps * self._step_time.fixed_s
        place = np.where(slack_s < 0.0, _HOPELESS, _IN_TIME)
        if self._config.max_wait_s is not None:
            place = np.where(arrived_s <= view.now_s - self._config.max_wait_s, _OVERDUE, place)
        return place, np.where(place == _IN_TIME, slack_s, arrived_s)

    def _columns(self, requests: Sequence[RequestView]) -> _Numbers:
        """The numbers of requests, a column for each."""
        arrived_s = [request.arrival_time_s for request in requests]
        due_s = [self._due_s(request) for request in requests]
        return np.array([arrived_s, due_s, [num_tokens_left(request) for request in requests]], np.float64)

    def _numbers(self, request: RequestView) -> tuple[float, float, int]:
        """What the rank of a request depends on: when it arrived, when its next token is due, what is left to compute.

        While it waits, none of them changes.
        """
        return request.arrival_time_s, self._due_s(request), num_tokens_left(request)

    def _due_s(self, request: RequestView) -> float:
        """When the next token is due."""
        first_s = request.first_token_time_s
        if first_s is None:
            ttft_s = request.ttft_slo_s
            return request.arrival_time_s + (self._config.default_ttft_slo_s if ttft_s is None else ttft_s)
        tpot_s = request.tpot_slo_s
        return first_s + request.num_output_tokens * (self._config.default_tpot_slo_s if tpot_s is None else tpot_s)


_OVERDUE, _IN_TIME, _HOPELESS = range(3)
_Numbers = npt.NDArray[np.float64]
