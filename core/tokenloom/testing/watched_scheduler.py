"""Schedulers around the one under test: one that keeps its decisions, one that preempts in its stead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from tokenloom.batch import PreemptMode, SchedulePlan
from tokenloom.interfaces.scheduler import Grant, Ledger, Scheduler, SchedulerView
from tokenloom.interfaces.scheduler_events import RequestPreempted, SchedulerEvent
from tokenloom.request import RequestView

__all__ = ["Decision", "PreemptBetween", "WatchedScheduler"]


@final
@dataclass(frozen=True, slots=True)
class Decision:
    """One plan and what it was made from: ids of the requests that waited and ran."""

    step_id: int
    waiting: tuple[str, ...]
    running: tuple[str, ...]
    num_scheduled_tokens: Mapping[str, int]
    victims: tuple[str, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of the whole plan."""
        return sum(self.num_scheduled_tokens.values())


@final
class WatchedScheduler(Scheduler):
    """Passes every call on and keeps the decisions. With `asks_twice`, notes each answer that changes when repeated.

    With `tells_twice`, every preemption is told again, as when the request loses blocks that it kept.
    """

    def __init__(self, inner: Scheduler, *, asks_twice: bool = False, tells_twice: bool = False) -> None:
        self.inner = inner
        self._asks_twice = asks_twice
        self._tells_twice = tells_twice
        self.decisions: list[Decision] = []
        self.changed_answers: list[str] = []

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        if self._asks_twice:
            mark = ledger.savepoint()
            first = _decision(view, self.inner.schedule(view, ledger))
            ledger.rollback(mark)
        plan = self.inner.schedule(view, ledger)
        decision = _decision(view, plan)
        if self._asks_twice and decision != first:
            self.changed_answers.append(f"step {view.step_id}: first {first}, then {decision}")
        self.decisions.append(decision)
        return plan

    def observe(self, event: SchedulerEvent) -> None:
        self.inner.observe(event)
        if self._tells_twice and isinstance(event, RequestPreempted):
            self.inner.observe(event)


@final
class PreemptBetween(Scheduler):
    """Takes one step from another scheduler to preempt a request, which that one learns as it learns everything.

    Attributes:
        num_forced: preemptions so far.
    """

    def __init__(self, inner: Scheduler, victim_id: str, num_output_tokens: int, mode: PreemptMode) -> None:
        """Preempts `victim_id` once, when it has `num_output_tokens` tokens or more."""
        self._inner = inner
        self._mode = mode
        self._victim_id = victim_id
        self._num_output_tokens = num_output_tokens
        self.num_forced = 0

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        for request in view.running if self.num_forced == 0 else ():
            if request.request_id == self._victim_id and request.num_output_tokens >= self._num_output_tokens:
                mark = ledger.savepoint()
                ledger.preempt(request, self._mode)
                if _serve_another(request, view, ledger):
                    return ledger.plan()
                ledger.rollback(mark)
        return self._inner.schedule(view, ledger)

    def observe(self, event: SchedulerEvent) -> None:
        if isinstance(event, RequestPreempted) and event.request.request_id == self._victim_id:
            self.num_forced += 1
        self._inner.observe(event)


def _serve_another(victim: RequestView, view: SchedulerView, ledger: Ledger) -> bool:
    """Every step has to compute something: any other request will do."""
    for request in (*view.running, *view.waiting):
        count = min(ledger.need(request), ledger.remaining_tokens)
        if request is not victim and count > 0 and isinstance(ledger.reserve(request, count), Grant):
            return True
    return False


def _decision(view: SchedulerView, plan: SchedulePlan) -> Decision:
    return Decision(
        step_id=view.step_id,
        waiting=tuple(str(request.request_id) for request in view.waiting),
        running=tuple(str(request.request_id) for request in view.running),
        num_scheduled_tokens={str(name): count for name, count in plan.num_scheduled_tokens.items()},
        victims=tuple(str(victim.request_id) for victim in plan.preemptions),
    )
