"""The scratch transaction of one step: counts of tokens, slots and blocks, with pins and releases, but no block ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from tokenloom.batch import Preemption, PreemptMode, SchedulePlan
from tokenloom.interfaces.scheduler import Grant, Ledger, Savepoint, SchedulerView, Shortfall
from tokenloom.kv.block_pool import NULL_BLOCK
from tokenloom.kv.manager import KVManager, PrefixMatch
from tokenloom.request import Request, RequestStatus, RequestView

__all__ = ["StepLedger"]


@dataclass(slots=True)
class _State:
    """Everything that a rollback restores."""

    tokens: int
    slots: int
    available: list[int]
    pending: list[int]
    grants: dict[str, Grant] = field(default_factory=dict)
    new_blocks: dict[str, tuple[int, ...]] = field(default_factory=dict)
    preemptions: dict[str, Preemption] = field(default_factory=dict)
    holders: dict[tuple[int, int], int] = field(default_factory=dict)
    """(pool, block id) -> holders gained (pins) minus holders lost (preemptions) in this step."""

    def copy(self) -> _State:
        return _State(
            self.tokens,
            self.slots,
            list(self.available),
            list(self.pending),
            dict(self.grants),
            dict(self.new_blocks),
            dict(self.preemptions),
            dict(self.holders),
        )


@final
class StepLedger(Ledger):
    """The ledger over a `KVManager`; a new one each step."""

    def __init__(self, view: SchedulerView, kv: KVManager, requests: Mapping[str, Request]) -> None:
        """`requests` maps the ids of the view's requests to the core's objects."""
        self._kv = kv
        self._requests = requests
        self._matches: dict[str, PrefixMatch] = {}
        self._saved: list[_State] = []
        self._last_plan: SchedulePlan | None = None
        self._state = _State(
            tokens=view.limits.max_num_batched_tokens,
            slots=view.limits.max_num_seqs - len(view.running),
            available=[pool.num_available for pool in kv.pools],
            pending=[0] * len(kv.pools),
        )

    @property
    def remaining_tokens(self) -> int:
        return self._state.tokens

    @property
    def remaining_slots(self) -> int:
        return self._state.slots

    @property
    def available_blocks(self) -> int:
        return min(self._state.available)

    @property
    def num_preempted(self) -> int:
        return len(self._state.preemptions)

    def cached_tokens(self, request: RequestView) -> int:
        return 0 if request.status is RequestStatus.RUNNING else self.match(request.request_id).num_tokens

    def need(self, request: RequestView) -> int:
        done = request.num_computed_tokens + request.num_inflight_tokens
        known = request.num_tokens + request.num_placeholder_tokens + request.num_drafts
        return known - done - self.cached_tokens(request)

    def is_scheduled(self, request: RequestView) -> bool:
        return request.request_id in self._state.grants

    def is_preempted(self, request: RequestView) -> bool:
        return request.request_id in self._state.preemptions

    def match(self, request_id: str) -> PrefixMatch:
        """The cached prefix of a waiting request; found once per step, since the index does not change in between."""
        match = self._matches.get(request_id)
        if match is None:
            match = self._matches[request_id] = self._kv.match(self._requests[request_id])
        return match

    def reserve(self, request: RequestView, num_tokens: int) -> Grant | Shortfall:
        self._require_open(request)
        need = self.need(request)
        # Half of a budget is easily a float, and would only break the commit half way.
        if not isinstance(num_tokens, int) or not 1 <= num_tokens <= need:
            raise ValueError(f"request {request.request_id}: {num_tokens!r} tokens reserved, allowed is 1..{need}")
        state = self._state
        if num_tokens > state.tokens:
            return Shortfall("tokens", num_tokens - state.tokens)
        is_waiting = request.status is not RequestStatus.RUNNING
        if is_waiting and state.slots < 1:
            return Shortfall("slots", 1)
        num_cached = self.cached_tokens(request) if is_waiting else 0
        pins = self._pins(request.request_id) if is_waiting else ()
        needed = self._new_blocks(request, num_cached, num_tokens)
        for pool, count in enumerate(needed):
            missing = count + sum(1 for pinned_pool, _, is_idle in pins if pinned_pool == pool and is_idle)
            if missing > state.available[pool]:
                return Shortfall("blocks", missing - state.available[pool], state.pending[pool])
        for pool, block_id, is_idle in pins:
            state.holders[pool, block_id] = state.holders.get((pool, block_id), 0) + 1
            state.available[pool] -= is_idle
        for pool, count in enumerate(needed):
            state.available[pool] -= count
        state.tokens -= num_tokens
        state.slots -= is_waiting
        grant = Grant(request.request_id, num_tokens, sum(needed), num_cached)
        state.grants[request.request_id] = grant
        state.new_blocks[request.request_id] = needed
        return grant

    def preempt(self, request: RequestView, mode: PreemptMode = PreemptMode.RECOMPUTE, keep_blocks: int = 0) -> int:
        request_id = request.request_id
        if request.status is not RequestStatus.RUNNING or request_id in self._state.preemptions:
            raise ValueError(f"request {request_id} cannot be preempted: it is {request.status}, or was so already")
        if mode is not PreemptMode.RECOMPUTE or keep_blocks:
            raise ValueError(f"preemption mode {mode} with keep_blocks={keep_blocks} is not supported; use recompute")
        state = self._state
        freed = 0
        grant = state.grants.pop(request_id, None)
        if grant is not None:
            state.tokens += grant.num_tokens
            freed += grant.num_new_blocks
            for pool, count in enumerate(state.new_blocks.pop(request_id)):
                state.available[pool] += count
        target = state.pending if request.num_inflight_tokens else state.available
        for pool, block_id in self._held(request_id):
            state.holders[pool, block_id] = state.holders.get((pool, block_id), 0) - 1
            if self._num_holders(pool, block_id) == 0:
                target[pool] += 1
                freed += target is state.available
        state.preemptions[request_id] = Preemption(request_id, mode, keep_blocks)
        state.slots += 1
        return freed

    def savepoint(self) -> Savepoint:
        self._saved.append(self._state.copy())
        return len(self._saved) - 1

    def rollback(self, savepoint: Savepoint) -> None:
        if not 0 <= savepoint < len(self._saved):
            raise ValueError(f"savepoint {savepoint} is not one of the {len(self._saved)} that this ledger holds")
        self._state = self._saved[savepoint].copy()
        del self._saved[savepoint + 1 :]

    def plan(self) -> SchedulePlan:
        tokens = {request_id: grant.num_tokens for request_id, grant in self._state.grants.items()}
        self._last_plan = SchedulePlan(tokens, tuple(self._state.preemptions.values()))
        return self._last_plan

    def made(self, plan: SchedulePlan) -> bool:
        """Whether `plan` is what this ledger's current records say, and so legal by construction."""
        return plan is self._last_plan and plan == self.plan()

    def _require_open(self, request: RequestView) -> None:
        if request.request_id not in self._requests:
            raise ValueError(f"request {request.request_id} is not in this step's view")
        if self.is_scheduled(request) or self.is_preempted(request):
            raise ValueError(f"request {request.request_id} was scheduled or preempted in this step already")

    def _new_blocks(self, request: RequestView, num_cached: int, num_tokens: int) -> tuple[int, ...]:
        """Blocks to allocate per pool."""
        slots = request.num_computed_tokens + request.num_inflight_tokens + num_cached + num_tokens
        target = -(-slots // self._kv.block_size)
        if request.status is not RequestStatus.RUNNING:
            target = max(target, self._kv.reserved_blocks(self._requests[request.request_id]))
        needed = [0] * len(self._kv.pools)
        for group, pool in enumerate(self._kv.pool_of_group):
            if request.status is RequestStatus.RUNNING:
                owned = len(self._kv.tables(request.request_id)[group])
            else:
                owned = num_cached // self._kv.block_size
            needed[pool] += max(0, target - owned)
        return tuple(needed)

    def _pins(self, request_id: str) -> list[tuple[int, int, bool]]:
        """(pool, block id, whether nobody holds it yet) of the cached blocks that a waiting request found."""
        match = self.match(request_id)
        return [
            (pool, block_id, self._num_holders(pool, block_id) == 0)
            for group, pool in enumerate(self._kv.pool_of_group)
            for block_id in match.block_ids[group]
            if block_id != NULL_BLOCK
        ]

    def _held(self, request_id: str) -> list[tuple[int, int]]:
        return [
            (pool, block_id)
            for group, pool in enumerate(self._kv.pool_of_group)
            for block_id in self._kv.tables(request_id)[group]
            if block_id != NULL_BLOCK
        ]

    def _num_holders(self, pool: int, block_id: int) -> int:
        return self._kv.pools[pool].blocks.ref_count(block_id) + self._state.holders.get((pool, block_id), 0)
