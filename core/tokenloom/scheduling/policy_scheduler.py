"""The loop around a `SchedulingPolicy`: running requests first, preempting where blocks lack; then admission."""

from __future__ import annotations

from typing import final

from tokenloom.batch import SchedulePlan
from tokenloom.interfaces.scheduler import Grant, Ledger, Scheduler, SchedulerView
from tokenloom.interfaces.scheduler_events import SchedulerEvent
from tokenloom.interfaces.scheduling_policy import SchedulingPolicy
from tokenloom.request import RequestView

__all__ = ["PolicyScheduler"]


@final
class PolicyScheduler(Scheduler):
    """A scheduler made of a policy's narrow points."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        for request in self._policy.order(view.running, view):
            if ledger.remaining_tokens == 0:
                break
            if not ledger.is_preempted(request):
                self._serve(request, view, ledger)
        if ledger.num_preempted == 0:
            self._admit(view, ledger)
        return ledger.plan()

    def observe(self, event: SchedulerEvent) -> None:
        self._policy.observe(event)

    def _serve(self, request: RequestView, view: SchedulerView, ledger: Ledger) -> None:
        """Schedules one running request, preempting others (or itself) as the policy says while blocks lack."""
        need = ledger.need(request)
        count = self._policy.chunk(request, need, view, ledger) if need > 0 else 0
        if count == 0:
            return
        while not isinstance(outcome := ledger.reserve(request, count), Grant):
            # Blocks that come by themselves at the next landing make further victims pointless.
            if outcome.resource != "blocks" or outcome.pending >= outcome.missing:
                return
            num_own = need - request.num_drafts
            if count > num_own > 0:
                # Nobody loses computed tokens for the sake of unverified drafts.
                count = num_own
                continue
            candidates = [other for other in view.running if not ledger.is_preempted(other)]
            victim = self._policy.select_victim(request, candidates, view)
            if victim is None:
                return
            if victim not in candidates:
                name = type(self._policy).__name__
                raise ValueError(f"{name}.select_victim named {victim.request_id}, which is not among its candidates")
            ledger.preempt(victim)
            if victim is request:
                return

    def _admit(self, view: SchedulerView, ledger: Ledger) -> None:
        for request in self._policy.order(view.waiting, view):
            if ledger.remaining_tokens == 0 or ledger.remaining_slots == 0:
                return
            if not self._policy.admit(request, view, ledger):
                return
            count = self._policy.chunk(request, ledger.need(request), view, ledger)
            if count == 0 or not isinstance(ledger.reserve(request, count), Grant):
                return
