"""What the tests of single schedulers share: an engine around one, and one whose steps take time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, final

from tokenloom.batch import SchedulePlan
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import SchedulerEvent, StepLanded
from tokenloom.plugins import default_registry
from tokenloom.request import Request
from tokenloom.testing.desk import Desk
from tokenloom.testing.engine_harness import EngineHarness
from tokenloom.testing.suite import build_choice

LIMITS = SchedulerContext(8, 64, 256, 4, 32)


def build(name: str, limits: SchedulerContext = LIMITS, **settings: Any) -> Scheduler:
    """A registered scheduler within the given limits."""
    values = {"max_num_seqs": limits.max_num_seqs, "max_num_batched_tokens": limits.max_num_batched_tokens, **settings}
    scheduler = build_choice(default_registry().get("scheduler", name).info, values).build(limits)
    assert isinstance(scheduler, Scheduler)
    return scheduler


def harness_with(name: str, settings: dict[str, Any] | None = None, **engine: Any) -> EngineHarness:
    """An engine around a registered scheduler; a step takes 1 s."""
    engine = {"vocab_size": 10_000_000, **engine}
    return EngineHarness(scheduler=lambda context: build(name, context, **(settings or {})), **engine)


def served(desk: Desk, name: str, **settings: Any) -> dict[str, int]:
    """Who gets how many tokens in the plan for what lies on a desk, in the order of the grants."""
    plan = build(name, desk.limits, **settings).schedule(desk.view(), desk.ledger())
    return dict(plan.num_scheduled_tokens)


def first_steps(harness: EngineHarness) -> dict[str, int]:
    """The step in which each request was first scheduled, in that order."""
    steps: dict[str, int] = {}
    for plan in harness.executor.plans:
        for row in plan.rows:
            steps.setdefault(row.request_id, plan.step_id)
    return steps


def ask(harness: EngineHarness, name: str, num_prompt: int, num_output: int, **fields: Any) -> Request:
    """A request with tokens that no other one begins with."""
    start = 1_000 * (len(harness.requests) + 1)
    request = harness.request(name, range(start, start + num_prompt), num_output)
    request = replace(request, **fields)
    harness.add(request)
    return request


@final
class TimedSteps(Scheduler):
    """Tells another scheduler of steps that take time, and keeps the times: (tokens, seconds)."""

    def __init__(self, inner: Scheduler, duration_s: Callable[[int, int], float]) -> None:
        """`duration_s` is a function of (step_id, tokens)."""
        self.inner = inner
        self._duration_s = duration_s
        self.steps: list[tuple[int, float]] = []

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        return self.inner.schedule(view, ledger)

    def observe(self, event: SchedulerEvent) -> None:
        if isinstance(event, StepLanded):
            event = replace(event, duration_s=self._duration_s(event.step_id, event.num_tokens))
            self.steps.append((event.num_tokens, event.duration_s))
        self.inner.observe(event)
