"""Every live request and where it stands: the only place where one changes state and its memory changes hands."""

from __future__ import annotations

from collections.abc import KeysView, Mapping, Sequence
from typing import final

from tokenloom.backlog import Backlog
from tokenloom.batch import PreemptMode
from tokenloom.engine_output import EngineStats
from tokenloom.engine_parts import EngineParts
from tokenloom.errors import RequestError
from tokenloom.interfaces.scheduler import Scheduler
from tokenloom.interfaces.scheduler_events import (
    RequestAdmitted,
    RequestArrived,
    RequestFinished,
    RequestPreempted,
    SchedulerEvent,
)
from tokenloom.kv.manager import PrefixMatch
from tokenloom.plugin_guard import plugin_call
from tokenloom.request import FinishReason, Request, RequestStatus
from tokenloom.scheduling import WaitingOrder

__all__ = ["RequestBook"]


@final
class RequestBook:
    """Waiting and running requests.

    waiting --admit--> running --finish--> gone
       ^                  |
       +-----preempt------+        (finish also from waiting)
    """

    def __init__(self, parts: EngineParts, stats: EngineStats) -> None:
        self._kv = parts.kv
        self._scheduler = parts.scheduler
        self._plugin = parts.labels["scheduler"]
        self._clock = parts.clock
        self._stats = stats
        limits = parts.limits
        self._backlog = Backlog(limits.max_num_seqs, limits.max_queued_requests, limits.max_queued_tokens)
        self._requests: dict[str, Request] = {}
        self._running: dict[str, Request] = {}
        self._removed: list[str] = []
        self._events: list[SchedulerEvent] = []
        self.waiting = WaitingOrder[Request]()

    @property
    def requests(self) -> Mapping[str, Request]:
        """All live requests by id."""
        return self._requests

    @property
    def running(self) -> tuple[Request, ...]:
        """Requests that hold a slot, in order of admission."""
        return tuple(self._running.values())

    @property
    def num_running(self) -> int:
        """Number of running requests."""
        return len(self._running)

    @property
    def running_ids(self) -> KeysView[str]:
        """Ids of the running requests, in order of admission."""
        return self._running.keys()

    def replace_scheduler(self, scheduler: Scheduler, plugin: str) -> None:
        """Another scheduler hears of what happens from now on."""
        self._scheduler, self._plugin = scheduler, plugin

    def take_removed(self) -> tuple[str, ...]:
        """Ids that ended or were preempted since the last call: what the executor must forget."""
        removed = tuple(self._removed)
        self._removed.clear()
        return removed

    def tell_events(self) -> None:
        """Tells the scheduler what happened since the last call; called when a commit is complete."""
        events, self._events = self._events, []
        for event in events:
            self.tell(event)

    def tell(self, event: SchedulerEvent) -> None:
        """Tells the scheduler of one event."""
        with plugin_call(self._plugin, "observe() takes every event"):
            self._scheduler.observe(event)

    def add(self, requests: Sequence[Request]) -> None:
        """Takes new requests in, all or none. Raises OverloadedError, or RequestError for an id that is in use."""
        self._backlog.check(requests, len(self._running))
        added: list[Request] = []
        try:
            for request in requests:
                self._add(request)
                added.append(request)
        except BaseException:
            for request in added:
                self.finish(request, FinishReason.ABORT)
            self.tell_events()
            raise

    def _add(self, request: Request) -> None:
        if request.request_id in self._requests:
            raise RequestError(f"request_id {request.request_id!r} is in use; choose another one", "request_id")
        self._requests[request.request_id] = request
        self.waiting.add(request)
        try:
            self.tell(RequestArrived(self._clock.now(), request))
        except BaseException:
            # The caller is told that the request was not taken in; then it must not run.
            del self._requests[request.request_id]
            self.waiting.remove(request)
            self.waiting.forget(request.request_id)
            raise
        self._backlog.enter(request)
        self._stats.num_prompt_tokens += request.num_prompt_tokens

    def admit(self, request: Request, match: PrefixMatch) -> None:
        """Gives a waiting request a slot, and pins the cached blocks that it found when the step was planned.

        Looked for again they could be others: a choice admitted before it in the same step may have taken a block that
        it would now share, and the plan counted without that.
        """
        self._kv.admit(request, match)
        self.waiting.remove(request)
        self._running[request.request_id] = request
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = match.num_tokens
        now_s = self._clock.now()
        if request.first_scheduled_time_s is None:
            self._backlog.leave(request)
            request.first_scheduled_time_s = now_s
            request.num_cached_tokens = min(match.num_tokens, request.num_prompt_tokens)
            self._stats.num_cached_tokens += request.num_cached_tokens
        self._events.append(RequestAdmitted(now_s, request))

    def preempt(self, request: Request, mode: PreemptMode, keep_blocks: int) -> None:
        """Takes a running request's slot and memory; it waits again, to be computed anew or to get its KV back.

        Of a waiting one that kept blocks, takes those behind the first `keep_blocks`.
        """
        num_kept_tokens = 0
        if mode is PreemptMode.SWAP:
            self._stats.num_swapped_bytes += self._kv.swap_out(request)
            self._stats.num_swaps += 1
        else:
            num_kept_tokens = self._kv.release_tail(request, keep_blocks)
        if request.request_id not in self._running:
            self._events.append(RequestPreempted(self._clock.now(), request, mode, num_kept_tokens))
            return
        del self._running[request.request_id]
        self._removed.append(request.request_id)
        request.status = RequestStatus.SWAPPED if mode is PreemptMode.SWAP else RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_inflight_tokens = 0
        request.draft_token_ids = []
        request.draft_parents = []
        request.num_preemptions += 1
        self._stats.num_preemptions += 1
        self.waiting.add(request)
        self._events.append(RequestPreempted(self._clock.now(), request, mode, num_kept_tokens))

    def lose(self, request_ids: Sequence[str]) -> None:
        """Takes note that KV did not arrive in host memory: those requests will be computed anew."""
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None and request.status is RequestStatus.SWAPPED:
                self._kv.host.drop(request_id)
                request.status = RequestStatus.PREEMPTED
                self._stats.num_lost_swaps += 1

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Ends a request, wherever it stands, and frees its memory."""
        self._kv.release(request, is_final=True)
        if request.first_scheduled_time_s is None:
            self._backlog.leave(request)
        if self._running.pop(request.request_id, None) is None:
            self.waiting.remove(request)
        else:
            self._removed.append(request.request_id)
        self.waiting.forget(request.request_id)
        del self._requests[request.request_id]
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.finish_time_s = self._clock.now()
        self._stats.num_finished += 1
        self._events.append(RequestFinished(request.finish_time_s, request, reason))
