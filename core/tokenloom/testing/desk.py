"""Requests in every state over a real KVManager, for tests of the ledger and of plans without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tokenloom.batch import PreemptMode, SchedulePlan
from tokenloom.clock import VirtualClock
from tokenloom.interfaces.cache import CacheContext
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.interfaces.scheduler import SchedulerContext, SchedulerView
from tokenloom.kv.manager import KVManager
from tokenloom.request import Request, RequestStatus
from tokenloom.scheduling import StepLedger
from tokenloom.testing.engine_harness import build_prefix_cache
from tokenloom.testing.stub_model import full_group, stub_request

__all__ = ["Desk"]


@final
class Desk:
    """A pool and the requests around it."""

    def __init__(
        self,
        num_blocks: Sequence[int] = (17,),
        block_size: int = 4,
        groups: Sequence[KVGroupSpec] | None = None,
        max_num_seqs: int = 8,
        budget: int = 64,
        cache: str = "hash",
        host_memory_bytes: int = 0,
    ) -> None:
        self.clock = VirtualClock()
        self.kv = KVManager(
            groups or (full_group(),),
            num_blocks,
            block_size,
            b"root",
            lambda count: build_prefix_cache(cache, CacheContext(block_size, count, 256)),
            self.clock,
            host_memory_bytes=host_memory_bytes,
        )
        self.limits = SchedulerContext(max_num_seqs, budget, 256, block_size, self.kv.num_usable_blocks)
        self.requests: dict[str, Request] = {}
        self.waiting: list[Request] = []
        self.running: list[Request] = []

    def wait(self, name: str, tokens: Sequence[int], status: RequestStatus = RequestStatus.WAITING) -> Request:
        """A new waiting request."""
        request = self.requests[name] = stub_request(name, tokens, status=status)
        self.waiting.append(request)
        return request

    def run(self, name: str, tokens: Sequence[int], num_computed: int | None = None, num_drafts: int = 0) -> Request:
        """A running request, computed but for its last token unless said otherwise."""
        request = self.wait(name, tokens)
        self.admit(request)
        end = len(tokens) - 1 if num_computed is None else num_computed
        if end > request.num_computed_tokens:
            self.kv.grow(request, end)
            request.num_computed_tokens = end
            self.kv.publish(request)
        request.draft_token_ids = [0] * num_drafts
        return request

    def cache(self, tokens: Sequence[int]) -> None:
        """Leaves the full blocks of a sequence in the prefix cache."""
        self.leave(self.run("gone", tokens, len(tokens)))

    def admit(self, request: Request) -> None:
        """What the engine does on admission."""
        match = self.kv.match(request)
        self.kv.admit(request, match)
        request.num_computed_tokens = match.num_tokens
        request.status = RequestStatus.RUNNING
        self.waiting.remove(request)
        self.running.append(request)

    def leave(self, request: Request) -> None:
        """Ends a running request."""
        self.kv.release(request, is_final=True)
        self.running.remove(request)
        del self.requests[request.request_id]

    def view(self) -> SchedulerView:
        return SchedulerView(0, self.clock.now(), tuple(self.waiting), tuple(self.running), self.limits)

    def ledger(self, *, defers: bool = True) -> StepLedger:
        return StepLedger(self.view(), self.kv, self.requests, defers=defers)

    def commit(self, plan: SchedulePlan) -> None:
        """What the engine does with a plan: admit, preempt, grow."""
        self.kv.next_tick()
        for name in plan.num_scheduled_tokens:
            if self.requests[name] in self.waiting:
                self.admit(self.requests[name])
        for victim in plan.preemptions:
            request = self.requests[victim.request_id]
            is_swapped = victim.mode is PreemptMode.SWAP
            if is_swapped:
                self.kv.swap_out(request)
            else:
                self.kv.release_tail(request, victim.keep_blocks)
            if request in self.waiting:
                continue
            request.status = RequestStatus.SWAPPED if is_swapped else RequestStatus.PREEMPTED
            request.num_computed_tokens = 0
            self.running.remove(request)
            self.waiting.append(request)
        for name, count in plan.num_scheduled_tokens.items():
            request = self.requests[name]
            self.kv.grow(request, request.num_computed_tokens + count)
        self.kv.check()

    def land(self) -> None:
        """What the engine does when the step has landed, but for the tokens."""
        self.kv.host.take_transfers()
        self.kv.land_transfers()
        self.kv.check()
