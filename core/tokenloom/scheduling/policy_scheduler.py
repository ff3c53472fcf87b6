"""The loop around a `SchedulingPolicy`: running requests go on, preempting where blocks lack; waiting ones join."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import final

from tokenloom.batch import PreemptMode, SchedulePlan
from tokenloom.interfaces.scheduler import Grant, Ledger, Scheduler, SchedulerView, Shortfall
from tokenloom.interfaces.scheduler_events import SchedulerEvent
from tokenloom.interfaces.scheduling_policy import AdmissionPolicy, SchedulingPolicy
from tokenloom.request import RequestStatus, RequestView
from tokenloom.scheduling.kept_places import KeptPlaces
from tokenloom.scheduling.prefill_quota import PrefillQuota

__all__ = ["PolicyScheduler"]

# Looked up in the enum for each request, it would take a tenth of a step's planning.
_RUNNING = RequestStatus.RUNNING

_MOST_DEFERRED = 64
"""Requests that may wait for a prefix before admission ends in a step."""


@final
class PolicyScheduler(Scheduler):
    """A scheduler made of a policy's narrow points."""

    def __init__(self, policy: SchedulingPolicy, admission: AdmissionPolicy | None = None) -> None:
        """`admission` may keep waiting requests out that would fit now; None lets all of them start."""
        self._policy = policy
        self._admission = admission

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
        if self._admission is not None:
            self._admission.observe(event)

    def _plan(self, view: SchedulerView, ledger: Ledger, *, may_keep: bool) -> SchedulePlan:
        _Step(self._policy, self._admission, view, ledger, may_keep=may_keep).go_through()
        return ledger.plan()


@final
class _Step:
    """One plan in the making."""

    def __init__(
        self,
        policy: SchedulingPolicy,
        admission: AdmissionPolicy | None,
        view: SchedulerView,
        ledger: Ledger,
        *,
        may_keep: bool,
    ) -> None:
        """`may_keep`: whether victims may keep blocks that are not needed, as far as the configuration wants it."""
        self._may_keep = may_keep
        self._policy = policy
        self._admission = admission if admission is not None and admission.can_refuse else None
        self._view = view
        self._ledger = ledger
        self._limits = policy.step_limits(view)
        self._prefills = PrefillQuota(self._limits, view, ledger)
        self._kept = KeptPlaces(view, self._limits, ledger)
        self._is_admitting = True
        self._num_unseen = len(view.running)
        # Unless the policy has a say in it, a decoding request gets its token.
        self._may_take_next = type(policy).chunk is SchedulingPolicy.chunk
        self._started: list[RequestView] = []
        self._places: dict[str, int] | None = None

    def go_through(self) -> None:
        """Serves and admits, in the policy's sequence, who can get something in this step."""
        # The next request is only asked for if it could get something: ordering a long queue costs time.
        ledger = self._ledger
        requests = iter(self._policy.sequence(self._view, ledger))
        while ledger.remaining_tokens > 0 and (self._num_unseen > 0 or self.may_admit()):
            request = next(requests, None)
            if request is None:
                break
            if request.status is not _RUNNING:
                self.admit(request)
                if self._num_unseen > 0 and not self.may_admit():
                    requests = self._unseen()
                continue
            self._num_unseen -= 1
            if self._may_take_next and ledger.reserve_next(request):
                continue
            if not ledger.is_preempted(request):
                self.serve(request)

    def _unseen(self) -> Iterator[RequestView]:
        """The running requests that are still to come, without the many who wait between them."""
        running_only = replace(self._view, waiting=())
        num_seen = len(self._view.running) - self._num_unseen
        return islice(self._policy.sequence(running_only, self._ledger), num_seen, None)

    def may_admit(self) -> bool:
        """Whether a waiting request could still join in this step."""
        num_waiting = len(self._kept.requests)
        may_displace = self._policy.is_preemptive and not num_waiting
        return self._is_admitting and num_waiting < _MOST_DEFERRED and (may_displace or self._num_free_slots() > 0)

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
            victim = self._select_victim(request)
            if victim is None:
                return
            self._preempt(victim, outcome.missing)
            # Memory is short; a newcomer would take what was just freed.
            self._is_admitting = False
            if victim is request:
                return
        if need > 1:
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
        elif count != 0 and not self._prefills.is_full(request, need, count) and self._reserve(request, need, count):
            self._prefills.take(request, need, count)
            self._kept.take(request, need - request.num_drafts, count)
            self._started.append(request)
            self._is_admitting = True

    def _reserve(self, request: RequestView, need: int, count: int) -> bool:
        """Reserves for a waiting request, displacing running ones as the policy says; nobody is displaced in vain."""
        undo: int | None = None
        while not isinstance(outcome := self._try(request, need, count), Grant):
            if outcome.resource == "prefix":
                if undo is not None:
                    self._ledger.rollback(undo)
                # It starts when that is computed; those behind it may start before, beside the place that it keeps.
                if not self._kept.requests:
                    spare = self._prefills.num_left(self._ledger.remaining_tokens)
                    self._kept.open([*self._candidates(), *self._started], spare)
                self._kept.keep(request, outcome.missing)
                self._is_admitting = True
                return False
            if outcome.resource == "blocks" and 0 < outcome.missing <= outcome.pending:
                # Its memory comes when the step in flight lands; those displaced for it stay so.
                return False
            # While others run, memory comes back by itself; where nobody does, those who wait may hold all of it.
            is_alone = not self._view.running and not self._kept.requests
            if outcome.resource == "blocks" and is_alone and self._take_kept(outcome.missing, request):
                continue
            victim = self._select_displaced(request, outcome)
            if victim is None:
                if undo is not None:
                    self._ledger.rollback(undo)
                return False
            undo = self._ledger.savepoint() if undo is None else undo
            self._preempt(victim, outcome.missing)
        return True

    def _try(self, request: RequestView, need: int, count: int) -> Grant | Shortfall:
        if self._num_free_slots() < 1:
            return Shortfall("slots", 1)
        others = [*self._candidates(), *self._started, *self._kept.requests] if self._admission is not None else []
        if not others and not self._kept.requests:
            return self._ledger.reserve(request, count)
        undo = self._ledger.savepoint()
        outcome = self._ledger.reserve(request, count)
        if isinstance(outcome, Shortfall):
            return outcome
        shortfall = self._kept.missing(request, need - request.num_drafts, count)
        if shortfall is None and others:
            shortfall = self._refusal(request, others)
        if shortfall is not None:
            self._ledger.rollback(undo)
        return shortfall or outcome

    def _refusal(self, request: RequestView, others: list[RequestView]) -> Shortfall | None:
        """What lacks for a request with a grant to run beside others, by the part `scheduler.admission`."""
        assert self._admission is not None, "somebody asks for its refusal"
        missing = self._admission.num_missing_blocks(request, others, self._view, self._ledger)
        if not isinstance(missing, int) or missing < 0:
            raise ValueError(f"{type(self._admission).__name__}.num_missing_blocks gave {missing!r}, not a count")
        return Shortfall("blocks", missing) if missing else None

    def _num_free_slots(self) -> int:
        """Slots left within the hard limit and the policy's own, but for those that are kept."""
        free, own = self._ledger.remaining_slots, self._limits.max_num_seqs
        if own is not None:
            free = min(free, own - (self._view.limits.max_num_seqs - free))
        return free - len(self._kept.requests)

    def _count(self, request: RequestView, need: int) -> int:
        """Tokens to compute now; 0 if there is nothing to do or no room for it."""
        if need <= 0:
            return 0
        count = self._policy.chunk(request, need, self._view, self._ledger)
        if need == 1:
            return count
        count, num_own = self._prefills.cut(request, need, count), need - request.num_drafts
        if count > num_own > 0:
            # Drafts of one request leave a token to each of the others that run.
            count = max(num_own, min(count, self._ledger.remaining_tokens - self._num_unseen))
        return count

    def _candidates(self) -> list[RequestView]:
        return [request for request in self._view.running if not self._ledger.is_preempted(request)]

    def _select_victim(self, request: RequestView) -> RequestView | None:
        """Whom the policy wants to preempt for a running request: it, or one that comes after it."""
        if self._places is None:
            order = self._policy.order(self._view.running, self._view)
            self._places = {other.request_id: place for place, other in enumerate(order)}
        running, own = self._candidates(), self._place(request)
        candidates = [other for other in running if other is request or self._place(other) > own]
        victim = self._ask_victim(request, candidates)
        if victim is request and len(candidates) == len(running) > 1:
            # The first always goes on. A policy may look for its request among the candidates, so it gets another one.
            candidates = [other for other in candidates if other is not request]
            victim = self._ask_victim(candidates[-1], candidates)
        return victim

    def _place(self, request: RequestView) -> int:
        """A running request's place in the policy's order; the end for one that the policy left out."""
        assert self._places is not None, "the order is known before anybody's place in it"
        return self._places.get(request.request_id, len(self._places))

    def _ask_victim(self, request: RequestView, candidates: list[RequestView]) -> RequestView | None:
        return self._candidate(self._policy.select_victim(request, candidates, self._view), candidates, "select_victim")

    def _select_displaced(self, request: RequestView, shortfall: Shortfall) -> RequestView | None:
        # Nobody is displaced for a request ahead of which another one waits: that one would have the first claim.
        if not self._policy.is_preemptive or shortfall.resource == "tokens" or self._kept.requests:
            return None
        candidates = self._candidates()
        if not candidates:
            return None
        victim = self._policy.select_displaced(request, shortfall, candidates, self._view)
        return self._candidate(victim, candidates, "select_displaced")

    def _candidate(self, victim: RequestView | None, candidates: list[RequestView], point: str) -> RequestView | None:
        if victim is not None and victim not in candidates:
            name = type(self._policy).__name__
            raise ValueError(f"{name}.{point} named {victim.request_id}, which is not among its candidates")
        return victim

    def _take_kept(self, num_needed: int, but: RequestView | None = None) -> bool:
        """Takes blocks from a waiting request that kept some when it was preempted; False if there is none."""
        keeper = next((request for request in self._ledger.keepers() if request is not but), None)
        if keeper is None:
            return False
        self._ledger.preempt(keeper, keep_blocks=self._keep_blocks(keeper, num_needed))
        return True

    def _preempt(self, victim: RequestView, num_needed: int) -> None:
        mode = self._ledger.preempt_mode(victim)
        keep_blocks = 0 if mode is PreemptMode.SWAP else self._keep_blocks(victim, num_needed)
        self._ledger.preempt(victim, mode, keep_blocks)

    def _keep_blocks(self, victim: RequestView, num_needed: int) -> int:
        return self._ledger.keep_blocks(victim, num_needed) if self._may_keep else 0
