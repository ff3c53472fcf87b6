"""A small scheduler that is right, and the same with one bug planted: `settings = {"bug": NAME}`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, final

from tokenloom.batch import Preemption, SchedulePlan
from tokenloom.interfaces.contract import Capabilities, PluginInfo
from tokenloom.interfaces.scheduler import (
    Grant,
    Ledger,
    Scheduler,
    SchedulerConfig,
    SchedulerContext,
    SchedulerView,
    Shortfall,
)
from tokenloom.interfaces.scheduler_events import RequestArrived, RequestFinished, RequestPreempted, SchedulerEvent
from tokenloom.request import FinishReason, RequestStatus, RequestView

__all__ = ["Bug", "PlantedConfig", "scheduler_info"]

Bug = Literal[
    "none",
    "one_token_over",
    "one_slot_over",
    "last_come_first_served",
    "shortest_first",
    "most_urgent_first",
    "empty_plan",
    "victim_is_scheduled",
    "preempts_all",
    "ignores_pending",
    "counts_in_schedule",
    "draws_at_random",
    "order_of_a_set",
    "order_of_addresses",
    "waits_for_the_impossible",
    "keeps_the_aborted",
    "remembers_the_ended",
    "forgets_the_preempted",
    "forgets_the_swapped",
    "serves_the_preempted_last",
    "counts_what_it_is_told",
    "queues_twice",
    "fits_before_it_cuts",
    "cannot_cut",
    "ignores_the_chunk_limit",
    "need_before_the_cache",
    "serves_what_is_in_flight",
    "most_retained_first",
    "longest_retained_last",
    "three_at_most",
]


def scheduler_info(*flags: str) -> PluginInfo:
    """The declaration of the scheduler below, with flags."""
    target = "tests.testing.planted_scheduler:PlantedConfig"
    return PluginInfo("scheduler", "planted", target, (1, 0), "", Capabilities(flags=frozenset(flags)))


class PlantedConfig(SchedulerConfig):
    """Settings of the scheduler below."""

    bug: Bug = "none"
    max_chunk_tokens: int | None = None

    def build(self, context: SchedulerContext) -> Scheduler:
        return Planted(self.bug, self.max_chunk_tokens, context)


@final
class Planted(Scheduler):
    """First come, first served, without the help of PolicyScheduler."""

    def __init__(self, bug: Bug, max_chunk_tokens: int | None, context: SchedulerContext) -> None:
        self._bug = bug
        self._max_chunk_tokens = None if bug == "ignores_the_chunk_limit" else max_chunk_tokens
        self._context = context
        self._num_plans = 0
        self._arrived: list[RequestView] = []
        self._was_preempted: dict[str, int] = {}
        self._ended: dict[str, float] = {}

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        self._num_plans += 1
        if self._bug == "empty_plan" and len(view.waiting) > 2:
            return SchedulePlan()
        for request in view.running:
            if not ledger.is_preempted(request):
                self._serve(request, view, ledger)
        if ledger.num_preempted == 0:
            for request in self._queue(view):
                if not self._admit(request, ledger):
                    break
        return self._spoil(ledger.plan(), view, ledger)

    def observe(self, event: SchedulerEvent) -> None:
        if isinstance(event, RequestArrived):
            self._arrived.append(event.request)
        elif isinstance(event, RequestPreempted):
            name = event.request.request_id
            self._was_preempted[name] = self._was_preempted.get(name, 0) + 1
            if self._bug == "queues_twice":
                self._arrived.append(event.request)
        elif isinstance(event, RequestFinished):
            if self._bug == "remembers_the_ended":
                self._ended[event.request.request_id] = event.now_s
            self._was_preempted.pop(event.request.request_id, None)
            if self._bug != "keeps_the_aborted" or event.reason is not FinishReason.ABORT:
                self._arrived.remove(event.request)

    def _queue(self, view: SchedulerView) -> Sequence[RequestView]:
        waiting = list(view.waiting)
        if self._bug == "last_come_first_served":
            waiting.reverse()
        if self._bug == "shortest_first":
            waiting.sort(key=lambda request: request.num_tokens)
        if self._bug == "most_urgent_first":
            waiting.sort(key=lambda request: request.priority)
        if self._bug == "most_retained_first":
            waiting.sort(key=lambda request: -request.retention_priority)
        if self._bug == "longest_retained_last":
            waiting.sort(key=lambda request: request.retention_ttl_s or float("inf"))
        if self._bug == "draws_at_random":
            random.shuffle(waiting)
        if self._bug == "counts_in_schedule" and self._num_plans % 2:
            waiting.reverse()
        if self._bug == "order_of_a_set":
            by_id = {request.request_id: request for request in waiting}
            waiting = [by_id[name] for name in set(by_id)]
        if self._bug == "order_of_addresses":
            waiting = list(set(waiting))
        if self._bug == "keeps_the_aborted":
            running = {request.request_id for request in view.running}
            waiting = [request for request in self._arrived if request.request_id not in running]
        if self._bug == "forgets_the_swapped":
            waiting = [request for request in waiting if request.status is not RequestStatus.SWAPPED]
        if self._bug == "serves_the_preempted_last":
            waiting.sort(key=lambda request: request.request_id in self._was_preempted)
        if self._bug == "counts_what_it_is_told":
            waiting.sort(key=lambda request: self._was_preempted.get(request.request_id, 0) % 2)
        if self._bug == "forgets_the_preempted":
            waiting = [request for request in waiting if request.request_id not in self._was_preempted]
        return waiting

    def _admit(self, request: RequestView, ledger: Ledger) -> bool:
        if self._bug == "three_at_most" and self._context.max_num_seqs - ledger.remaining_slots >= 3:
            return False
        need = ledger.need(request)
        if self._bug == "need_before_the_cache":
            need = request.num_tokens - request.num_computed_tokens
        if self._bug == "waits_for_the_impossible":
            # The last token's KV is never stored, but here it gets a block.
            num_blocks = -(-request.max_total_tokens // self._context.block_size)
            if num_blocks > ledger.spare_blocks:
                return False
        count = self._cut(need, request, ledger)
        return count > 0 and isinstance(ledger.reserve(request, count), Grant)

    def _cut(self, need: int, request: RequestView, ledger: Ledger) -> int:
        is_first = ledger.remaining_tokens == self._context.max_num_batched_tokens
        if self._bug == "fits_before_it_cuts" and need > ledger.remaining_tokens and not is_first:
            return 0
        if self._bug == "cannot_cut" and need > ledger.remaining_tokens:
            return 0
        if self._max_chunk_tokens is not None and need - request.num_drafts > self._max_chunk_tokens:
            need = self._max_chunk_tokens
        return min(need, ledger.remaining_tokens)

    def _serve(self, request: RequestView, view: SchedulerView, ledger: Ledger) -> None:
        need = ledger.need(request)
        if self._bug == "serves_what_is_in_flight":
            need = max(1, need)
        count = self._cut(need, request, ledger)
        if count <= 0:
            return
        while isinstance(outcome := ledger.reserve(request, count), Shortfall):
            is_pending = outcome.pending >= outcome.missing and self._bug != "ignores_pending"
            if outcome.resource != "blocks" or is_pending:
                return
            others = [other for other in view.running if not ledger.is_preempted(other)]
            victims = others[1:] if self._bug == "preempts_all" and len(others) > 2 else others[-1:]
            for victim in victims:
                ledger.preempt(victim)
            if request in victims:
                return

    def _spoil(self, plan: SchedulePlan, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        counts = dict(plan.num_scheduled_tokens)
        if self._bug == "one_token_over" and ledger.remaining_tokens == 0:
            for request in (*view.running, *view.waiting):
                needed = ledger.need(request)
                if 0 < counts.get(request.request_id, 0) < needed:
                    counts[request.request_id] += 1
                    return SchedulePlan(counts, plan.preemptions)
        if self._bug == "one_slot_over" and ledger.remaining_slots == 0 and ledger.remaining_tokens > 0:
            for request in view.waiting:
                if request.request_id not in counts:
                    return SchedulePlan({**counts, request.request_id: 1}, plan.preemptions)
        if self._bug == "victim_is_scheduled" and plan.preemptions:
            return SchedulePlan({**counts, plan.preemptions[-1].request_id: 1}, plan.preemptions)
        if self._bug == "victim_is_scheduled" and len(counts) > 2:
            return SchedulePlan(counts, (*plan.preemptions, Preemption(next(iter(counts)))))
        return plan
