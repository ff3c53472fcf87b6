"""Least slack first: who is closest to missing a target that can still be met comes next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop
from typing import Annotated, final

from pydantic import Field

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import RequestArrived, RequestFinished, SchedulerEvent, StepLanded
from tokenloom.interfaces.scheduling_policy import SchedulingPolicy, StepLimits, VictimPolicy
from tokenloom.request import RequestView
from tokenloom.scheduling import PolicyScheduler
from tokenloom_schedulers.prefill_settings import PrefillSettings
from tokenloom_schedulers.step_time import StepTime

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
    max_wait_s: Seconds = Field(
        default=60.0, description="A request that arrived longer ago than this goes first, hopeless or not, in seconds."
    )
    victim: PluginChoice = Field(description="Whom to preempt when KV blocks run out, of those that come later.")

    def build(self, context: SchedulerContext) -> Scheduler:
        return PolicyScheduler(DeadlinePolicy(self, self.victim.build(context)))


@final
class DeadlinePolicy(SchedulingPolicy):
    """Maximises goodput, the requests that meet both targets: least slack first, the hopeless ones last.

    Slack is the time until a request's next token is due (ttft_slo_s after its arrival, then tpot_slo_s after the one
    before) less the time that computing what is left takes, which is learned from the steps that landed. Below zero it
    is hopeless. Requests with one token to compute go first, since they hold memory and cost next to nothing; then
    prompts, running or waiting, by slack; then hopeless prompts in order of arrival. Where blocks lack, `victim`
    chooses among the hopeless requests that come later, or else among all that do.

    Bound on waiting: a request that arrived `max_wait_s` ago comes before all others but older ones.
    """

    def __init__(self, config: DeadlineConfig, victims: VictimPolicy) -> None:
        self._limits = config.step_limits()
        self._config = config
        self._victims = victims
        self._step_time = StepTime()
        self._arrived: dict[str, tuple[float, int]] = {}
        """request_id -> (when its first token is due, its tokens), to save looking them up in every step."""

    def order(self, requests: Sequence[RequestView], view: SchedulerView) -> Iterable[RequestView]:
        rank = self._rank(view)
        classes: list[list[tuple[float, int, RequestView]]] = [[], [], []]
        for index, request in enumerate(requests):
            place, value = rank(request)
            classes[place].append((value, index, request))
        yield from (request for _, _, request in sorted(classes[_OVERDUE]))
        in_time = classes[_IN_TIME]
        heapify(in_time)
        while in_time:
            yield heappop(in_time)[2]
        yield from (request for _, _, request in sorted(classes[_HOPELESS]))

    def sequence(self, view: SchedulerView, ledger: Ledger) -> Iterable[RequestView]:
        yield from self.order([request for request in view.running if _num_left(request) <= 1], view)
        prompts = [request for request in view.running if _num_left(request) > 1]
        yield from self.order((*prompts, *view.waiting), view)

    def step_limits(self, view: SchedulerView) -> StepLimits:
        return self._limits

    def select_victim(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        rank_of = self._rank(view)
        ranks = [(rank_of(other), index) for index, other in enumerate(candidates)]
        own = ranks[candidates.index(request)]
        # By the order in which they are served, or two requests could take each other's memory for ever.
        later = [(rank, other) for rank, other in zip(ranks, candidates, strict=True) if rank > own]
        hopeless = [other for (rank, _), other in later if rank[0] == _HOPELESS]
        return self._victims.select(request, hopeless or [other for _, other in later], view) if later else request

    def observe(self, event: SchedulerEvent) -> None:
        if isinstance(event, RequestArrived):
            self._arrived[event.request.request_id] = (self._due_s(event.request), event.request.num_tokens)
        elif isinstance(event, RequestFinished):
            self._arrived.pop(event.request.request_id, None)
        elif isinstance(event, StepLanded):
            self._step_time.observe(event.num_tokens, event.duration_s)

    def _rank(self, view: SchedulerView) -> Callable[[RequestView], tuple[int, float]]:
        """The order of requests in this step: (class, place within it). A closure, since it is asked 10,000 times."""
        now_s, overdue_s, budget = view.now_s, view.now_s - self._config.max_wait_s, view.limits.max_num_batched_tokens
        fixed_s, per_token_s = self._step_time.fixed_s, self._step_time.per_token_s
        arrived = self._arrived

        def rank(request: RequestView) -> tuple[int, float]:
            arrived_s = request.arrival_time_s
            if arrived_s <= overdue_s:
                return (_OVERDUE, arrived_s)
            is_untouched = request.num_computed_tokens == 0 and request.first_token_time_s is None
            known = arrived.get(request.request_id) if is_untouched else None
            due_s, num_left = known or (self._due_s(request), _num_left(request))
            # The time left if this request got all of every step.
            slack_s = due_s - now_s - num_left * per_token_s - -(-num_left // budget) * fixed_s
            return (_HOPELESS, arrived_s) if slack_s < 0.0 else (_IN_TIME, slack_s)

        return rank

    def _due_s(self, request: RequestView) -> float:
        """When the next token is due."""
        if request.first_token_time_s is None:
            ttft_s = self._config.default_ttft_slo_s if request.ttft_slo_s is None else request.ttft_slo_s
            return request.arrival_time_s + ttft_s
        tpot_s = self._config.default_tpot_slo_s if request.tpot_slo_s is None else request.tpot_slo_s
        return request.first_token_time_s + request.num_output_tokens * tpot_s


_OVERDUE, _IN_TIME, _HOPELESS = range(3)


def _num_left(request: RequestView) -> int:
    """Tokens to compute before the next one comes out, drafts not counted; a cached prefix is not known here."""
    return (
        request.num_tokens + request.num_placeholder_tokens - request.num_computed_tokens - request.num_inflight_tokens
    )
