"""The loop around a `SchedulingPolicy`: running requests go on, preempting where blocks lack; waiting ones join."""

from __future__ import annotations

from typing import final

from tokenloom.batch import PreemptMode, SchedulePlan
from tokenloom.interfaces.scheduler import Grant, Ledger, Scheduler, SchedulerView, Shortfall
from tokenloom.interfaces.scheduler_events import SchedulerEvent
from tokenloom.interfaces.scheduling_policy import SchedulingPolicy
from tokenloom.request import RequestStatus, RequestView
from tokenloom.scheduling.prefill_quota import PrefillQuota

__all__ = ["PolicyScheduler"]

_MOST_DEFERRED = 64
"""Requests that may wait for a prefix before admission ends in a step."""


@final
class PolicyScheduler(Scheduler):
    """A scheduler made of a policy's narrow points."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self._policy = policy

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        start = ledger.savepoint() if view.limits.partial_preemption else None
        plan = self._plan(view, ledger, may_keep=True)
        if start is None or plan.num_scheduled_tokens or not any(victim.keep_blocks for victim in plan.preemptions):
            return plan
        # What each victim kept is what the next one lacked, so that nobody could go on: nobody keeps anything then.
        ledger.rollback(start)
        return self._plan(view, ledger, may_keep=False)

    def observe(self, event: SchedulerEvent) -> None:
        self._policy.observe(event)

    def _plan(self, view: SchedulerView, ledger: Ledger, *, may_keep: bool) -> SchedulePlan:
        step = _Step(self._policy, view, ledger, may_keep=may_keep)
        num_unseen = len(view.running)
        # The next request is only asked for if it could get something: ordering a long queue costs time.
        requests = iter(self._policy.sequence(view, ledger))
        while ledger.remaining_tokens > 0 and (num_unseen > 0 or step.may_admit()):
            request = next(requests, None)
            if request is None:
                break
            if request.status is not RequestStatus.RUNNING:
                step.admit(request)
                continue
            num_unseen -= 1
            if not ledger.is_preempted(request):
                step.serve(request)
        return ledger.plan()


@final
class _Step:
    """One plan in the making."""

    def __init__(self, policy: SchedulingPolicy, view: SchedulerView, ledger: Ledger, *, may_keep: bool) -> None:
        """`may_keep`: whether victims may keep blocks that are not needed, as far as the configuration wants it."""
        self._may_keep = may_keep
        self._policy = policy
        self._view = view
        self._ledger = ledger
        self._limits = policy.step_limits(view)
        self._prefills = PrefillQuota(self._limits, view, ledger)
        self._is_admitting = True
        self._num_deferred = 0

    def may_admit(self) -> bool:
        """Whether a waiting request could still join in this step."""
        # However many wait for the same prefix, no more are asked than could start once it is there; asking costs time.
        may_defer = self._num_deferred < min(_MOST_DEFERRED, self._view.limits.max_num_seqs)
        return self._is_admitting and may_defer and (self._num_free_slots() > 0 or self._policy.is_preemptive)

    def serve(self, request: RequestView) -> None:
        """Schedules one running request, preempting others (or itself) as the policy says while blocks lack."""
        need = self._ledger.need(request)
        count = self._count(request, need)
        if count == 0:
            return
        while not isinstance(outcome := self._ledger.reserve(request, count), Grant):
            # Blocks that come by themselves at the next landing make further victims pointless.
            if outcome.resource != "blocks" or outcome.pending >= outcome.missing:
                return
            num_own = need - request.num_drafts
            if count > num_own > 0:
                # Nobody loses computed tokens for the sake of unverified drafts.
                count = num_own
                continue
            if self._take_kept(outcome.missing):
                continue
            candidates = self._candidates()
            victim = self._policy.select_victim(request, candidates, self._view)
            if victim is None:
                return
            self._preempt(victim, candidates, "select_victim", outcome.missing)
            # Memory is short; a newcomer would take what was just freed.
            self._is_admitting = False
            if victim is request:
                return
        self._prefills.take(request, need, count)

    def admit(self, request: RequestView) -> None:
        """Starts one waiting request; the first that cannot start ends admission."""
        if not self.may_admit() or self._ledger.is_preempted(request):
            return
        self._is_admitting = False
        if not self._policy.admit(request, self._view, self._ledger):
            return
        need = self._ledger.need(request)
        count = self._count(request, need)
        if self._prefills.is_full_of_long(request, need, count):
            self._is_admitting = True
        elif count != 0 and not self._prefills.is_full(request, need, count) and self._reserve(request, count):
            self._prefills.take(request, need, count)
            self._is_admitting = True

    def _reserve(self, request: RequestView, count: int) -> bool:
        """Reserves for a waiting request, displacing running ones as the policy says; nobody is displaced in vain."""
        undo: int | None = None
        while not isinstance(outcome := self._try(request, count), Grant):
            if outcome.resource == "prefix":
                # It starts when that is computed; those behind it may start before.
                self._is_admitting = True
                self._num_deferred += 1
                if undo is not None:
                    self._ledger.rollback(undo)
                return False
            if outcome.resource == "blocks" and 0 < outcome.missing <= outcome.pending:
                # Its memory comes when the step in flight lands; those displaced for it stay so.
                return False
            # While others run, memory comes back by itself; where nobody does, those who wait may hold all of it.
            if outcome.resource == "blocks" and not self._view.running and self._take_kept(outcome.missing, request):
                continue
            candidates = self._candidates() if self._policy.is_preemptive and outcome.resource != "tokens" else []
            victim = self._policy.select_displaced(request, outcome, candidates, self._view) if candidates else None
            if victim is None:
                if undo is not None:
                    self._ledger.rollback(undo)
                return False
            undo = self._ledger.savepoint() if undo is None else undo
            self._preempt(victim, candidates, "select_displaced", outcome.missing)
        return True

    def _try(self, request: RequestView, count: int) -> Grant | Shortfall:
        if self._num_free_slots() < 1:
            return Shortfall("slots", 1)
        return self._ledger.reserve(request, count)

    def _num_free_slots(self) -> int:
        """Slots left within the hard limit and the policy's own."""
        free = self._ledger.remaining_slots
        if self._limits.max_num_seqs is None:
            return free
        return min(free, self._limits.max_num_seqs - (self._view.limits.max_num_seqs - free))

    def _count(self, request: RequestView, need: int) -> int:
        """Tokens to compute now; 0 if there is nothing to do or no room for it."""
        if need <= 0:
            return 0
        return self._prefills.cut(request, need, self._policy.chunk(request, need, self._view, self._ledger))

    def _candidates(self) -> list[RequestView]:
        return [request for request in self._view.running if not self._ledger.is_preempted(request)]

    def _take_kept(self, num_needed: int, but: RequestView | None = None) -> bool:
        """Takes blocks from a waiting request that kept some when it was preempted; False if there is none."""
        keeper = next((request for request in self._ledger.keepers() if request is not but), None)
        if keeper is None:
            return False
        self._ledger.preempt(keeper, keep_blocks=self._keep_blocks(keeper, num_needed))
        return True

    def _preempt(self, victim: RequestView, candidates: list[RequestView], point: str, num_needed: int) -> None:
        if victim not in candidates:
            name = type(self._policy).__name__
            raise ValueError(f"{name}.{point} named {victim.request_id}, which is not among its candidates")
        mode = self._ledger.preempt_mode(victim)
        keep_blocks = 0 if mode is PreemptMode.SWAP else self._keep_blocks(victim, num_needed)
        self._ledger.preempt(victim, mode, keep_blocks)

    def _keep_blocks(self, victim: RequestView, num_needed: int) -> int:
        return self._ledger.keep_blocks(victim, num_needed) if self._may_keep else 0
