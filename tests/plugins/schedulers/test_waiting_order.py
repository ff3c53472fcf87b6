"""Orders that schedulers keep up to date instead of sorting anew: in random traffic they are those of the rules."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, final

import pytest

from tests.plugins.schedulers.scheduling import TimedSteps, ask, build
from tokenloom.batch import SchedulePlan
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import (
    RequestArrived,
    RequestFinished,
    RequestPreempted,
    SchedulerEvent,
    StepLanded,
)
from tokenloom.plugins import default_registry
from tokenloom.request import RequestView
from tokenloom.testing.engine_harness import EngineHarness
from tokenloom_schedulers.step_time import StepTime

MAX_WAIT_S = 40.0
AGEING_S = 7.0
TTFT_S, TPOT_S = 9.0, 0.5


class Rule(ABC):
    """A scheduler's order by its own words, from the view and from what it was told."""

    @abstractmethod
    def order(self, view: SchedulerView) -> list[RequestView]: ...

    def observe(self, event: SchedulerEvent) -> None:  # noqa: B027
        """Learns nothing by default."""


@final
class ResponseRatio(Rule):
    """sjf, in exact arithmetic."""

    def __init__(self) -> None:
        self._num_computed = 0
        self._jobs: dict[str, tuple[int, int]] = {}

    def order(self, view: SchedulerView) -> list[RequestView]:
        due = [r for r in view.waiting if r.arrival_time_s <= view.now_s - MAX_WAIT_S]
        others = [r for r in view.waiting if r.arrival_time_s > view.now_s - MAX_WAIT_S]
        return [*view.running, *due, *sorted(others, key=self._ratio, reverse=True)]

    def _ratio(self, request: RequestView) -> Fraction:
        arrived_at, work = self._jobs[request.request_id]
        return Fraction(1 + self._num_computed - arrived_at, work)

    def observe(self, event: SchedulerEvent) -> None:
        if isinstance(event, (RequestArrived, RequestPreempted)):
            request = event.request
            arrived_at = self._jobs.get(request.request_id, (self._num_computed, 0))[0]
            self._jobs[request.request_id] = (arrived_at, max(request.max_total_tokens, request.num_tokens + 1))
        elif isinstance(event, RequestFinished):
            self._jobs.pop(event.request.request_id, None)
        elif isinstance(event, StepLanded):
            self._num_computed += event.num_tokens


@final
class LeastSlack(Rule):
    """deadline."""

    def __init__(self) -> None:
        self._step_time = StepTime()

    def order(self, view: SchedulerView) -> list[RequestView]:
        decoding = [request for request in view.running if num_left(request) <= 1]
        prompts = [request for request in view.running if num_left(request) > 1]
        return [*self._sorted(decoding, view), *self._sorted([*prompts, *view.waiting], view)]

    def _sorted(self, requests: Sequence[RequestView], view: SchedulerView) -> list[RequestView]:
        return sorted(requests, key=lambda request: self._rank(request, view))

    def _rank(self, request: RequestView, view: SchedulerView) -> tuple[int, float]:
        if request.arrival_time_s <= view.now_s - MAX_WAIT_S:
            return 0, request.arrival_time_s
        due_s = request.arrival_time_s + (TTFT_S if request.ttft_slo_s is None else request.ttft_slo_s)
        if request.first_token_time_s is not None:
            tpot_s = TPOT_S if request.tpot_slo_s is None else request.tpot_slo_s
            due_s = request.first_token_time_s + request.num_output_tokens * tpot_s
        left = num_left(request)
        num_steps = -(-left // view.limits.max_num_batched_tokens)
        slack_s = due_s - view.now_s - left * self._step_time.per_token_s - num_steps * self._step_time.fixed_s
        return (1, slack_s) if slack_s >= 0.0 else (2, request.arrival_time_s)

    def observe(self, event: SchedulerEvent) -> None:
        if isinstance(event, StepLanded):
            self._step_time.observe(event.num_tokens, event.duration_s)


def num_left(request: RequestView) -> int:
    return request.num_tokens - request.num_computed_tokens


@final
class Urgency(Rule):
    """priority."""

    def order(self, view: SchedulerView) -> list[RequestView]:
        return sorted((*view.running, *view.waiting), key=lambda r: r.arrival_time_s + r.priority * AGEING_S)


RULES: dict[str, tuple[type[Rule], dict[str, Any]]] = {
    "sjf": (ResponseRatio, {"max_wait_s": MAX_WAIT_S}),
    "deadline": (
        LeastSlack,
        {"max_wait_s": MAX_WAIT_S, "default_ttft_slo_s": TTFT_S, "default_tpot_slo_s": TPOT_S},
    ),
    "priority": (Urgency, {"ageing_s": AGEING_S}),
}


@final
class Compared(Scheduler):
    """A scheduler whose whole sequence is compared with its rule before each plan.

    Attributes:
        most_waiting: requests.
        num_told: arrivals and preemptions.
        num_ranked: how often a waiting request's numbers were computed.
    """

    def __init__(self, inner: Scheduler, rule: Rule) -> None:
        self._inner = inner
        self._policy: Any = inner._policy  # type: ignore[attr-defined]
        self._rule = rule
        self.most_waiting = 0
        self.num_told = 0
        self.num_ranked = 0
        numbers = self._policy._waiting._numbers

        def counted(request: RequestView) -> Sequence[float]:
            self.num_ranked += 1
            found: Sequence[float] = numbers(request)
            return found

        self._policy._waiting._numbers = counted

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        names = [request.request_id for request in self._policy.sequence(view, ledger)]
        assert names == [request.request_id for request in self._rule.order(view)], f"step {view.step_id}"
        self.most_waiting = max(self.most_waiting, len(view.waiting))
        return self._inner.schedule(view, ledger)

    def observe(self, event: SchedulerEvent) -> None:
        self.num_told += isinstance(event, (RequestArrived, RequestPreempted))
        self._rule.observe(event)
        self._inner.observe(event)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", RULES)
def test_order_is_the_stated_one_whatever_happens(name: str, seed: int) -> None:
    """Bursts, equal requests, memory for few, chunks, aborts in every state. And no step looks at the whole queue."""
    draw = random.Random(f"{name} {seed}")
    compared: list[Compared] = []

    def scheduler(context: SchedulerContext) -> Scheduler:
        rule, settings = RULES[name]
        compared.append(Compared(build(name, context, **settings), rule()))
        return TimedSteps(compared[0], lambda step, count: 0.3 + 0.01 * (step % 3) + 0.02 * count)

    harness = EngineHarness(
        scheduler=scheduler, num_blocks=(24,), max_num_seqs=5, budget=24, vocab_size=10_000_000, checks="cheap"
    )
    for step in range(90):
        for _ in range(250 if step % 30 == 5 else draw.choice([0, 0, 1, 3])):
            fields = {
                "priority": draw.randrange(3),
                "ttft_slo_s": draw.choice([None, 2.0, 30.0, 90.0]),
                "tpot_slo_s": draw.choice([None, 3.0]),
                "arrival_time_s": harness.clock.now() - draw.choice([0.0, 0.0, 2.0]),
            }
            number = len(harness.requests)
            ask(harness, f"r{number}", draw.choice([1, 4, 4, 9, 40]), draw.choice([1, 6, 6, 17]), **fields)
        for request_id in list(harness.engine._book.requests):
            if draw.random() < 0.01:
                harness.engine.abort(request_id)
        harness.step()
    assert compared[0].most_waiting > 512, "least_first sorts as many at once"
    assert compared[0].num_ranked == compared[0].num_told
    assert harness.engine.stats.num_preemptions > 3


def test_requests_that_no_event_told_of_are_ordered_too() -> None:
    """As for a scheduler that another one asks about some of the requests only."""
    names = default_registry().names("scheduler")
    for name in RULES:
        assert name in names
        harness = EngineHarness(vocab_size=10_000_000, max_num_seqs=1)
        for index in range(6):
            ask(harness, f"r{index}", 12 - index, 4 + index % 3, priority=index % 2)
        harness.step()
        rule, settings = RULES[name]
        scheduler, expected = build(name, **settings), rule()
        told: Sequence[RequestView] = list(harness.engine._book.waiting)[::2]
        for request in told:
            scheduler.observe(RequestArrived(0.0, request))
            expected.observe(RequestArrived(0.0, request))
        book = harness.engine._book
        view = SchedulerView(1, 1.0, tuple(book.waiting), book.running, replace(harness.engine._parts.limits))
        for request in view.waiting:
            if request not in told:
                # It counts as one that arrives now.
                expected.observe(RequestArrived(0.0, request))
        policy = scheduler._policy  # type: ignore[attr-defined]
        found = [request.request_id for request in policy.sequence(view, None)]
        assert found == [request.request_id for request in expected.order(view)], name
