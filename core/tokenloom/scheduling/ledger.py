"""The scratch transaction of one step: counts of tokens, slots and blocks, with pins and releases, but no block ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

from tokenloom.batch import Preemption, PreemptMode, SchedulePlan
from tokenloom.interfaces.scheduler import Grant, Ledger, Savepoint, SchedulerView, Shortfall
from tokenloom.kv.block_pool import NULL_BLOCK
from tokenloom.kv.manager import KVManager, PrefixMatch
from tokenloom.request import Request, RequestStatus, RequestView
from tokenloom.scheduling.coming_blocks import ComingBlocks
from tokenloom.scheduling.ledger_state import LedgerState
from tokenloom.scheduling.preemption_cost import PreemptionCost
from tokenloom.scheduling.run_placement import RunPlacement

__all__ = ["StepLedger"]


@final
class StepLedger(Ledger):
    """The ledger over a `KVManager`; a new one each step."""

    def __init__(
        self,
        view: SchedulerView,
        kv: KVManager,
        requests: Mapping[str, Request],
        *,
        defers: bool = True,
        cost: PreemptionCost | None = None,
    ) -> None:
        """`requests` maps the ids of the view's requests to the core's objects.

        `defers` lets requests wait for a prefix that another one is computing. That is good sense, not a rule: a plan
        that starts both is legal, so a ledger that checks a plan does not defer. `cost` is what was measured so far.
        """
        self._mode = view.limits.preempt_mode
        self._is_partial = view.limits.partial_preemption
        self._cost = cost or PreemptionCost()
        self._kv = kv
        self._requests = requests
        self._coming = ComingBlocks(kv) if defers and kv.shares_in_flight else None
        self._matches: dict[str, PrefixMatch] = {}
        self._saved: list[LedgerState] = []
        self._last_plan: SchedulePlan | None = None
        self._state = LedgerState(
            tokens=view.limits.max_num_batched_tokens,
            slots=view.limits.max_num_seqs - len(view.running),
            available=[pool.num_available for pool in kv.pools],
            pending=[0] * len(kv.pools),
            host_bytes=kv.host.capacity_bytes - kv.host.used_bytes,
            runs=RunPlacement.of(kv) if kv.in_runs else None,
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

    @property
    def num_refused_swaps(self) -> int:
        """Swaps that became recomputes because the host memory had no room."""
        return self._state.num_refused_swaps

    @property
    def preemptions(self) -> tuple[Preemption, ...]:
        """What happens to the victims, which may be less than the plan asks for."""
        return tuple(replace(p, mode=self._state.modes[p.request_id]) for p in self._state.preemptions.values())

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
        num_cached = self.cached_tokens(request) if is_waiting else 0
        if is_waiting and self._coming is not None and request.status is not RequestStatus.SWAPPED:
            num_coming = self._coming.num_tokens(self._requests[request.request_id], num_cached, state.grants)
            if num_coming:
                return Shortfall("prefix", num_coming, num_coming)
        if is_waiting and state.slots < 1:
            return Shortfall("slots", 1)
        pins = self._pins(request.request_id) if is_waiting else ()
        needed = self._new_blocks(request, num_cached, num_tokens)
        for pool, count in enumerate(needed):
            missing = count + sum(1 for pinned_pool, _, is_available in pins if pinned_pool == pool and is_available)
            if missing > state.available[pool]:
                return Shortfall("blocks", missing - state.available[pool], state.pending[pool])
        if is_waiting and state.runs is not None:
            shortfall = self._place(request.request_id, state.runs)
            if shortfall is not None:
                return shortfall
        for pool, block_id, is_available in pins:
            state.holders[pool, block_id] = state.holders.get((pool, block_id), 0) + 1
            state.available[pool] -= is_available
            if (pool, block_id) in state.leaving:
                state.leaving.discard((pool, block_id))
                state.pending[pool] -= 1
        for pool, count in enumerate(needed):
            state.available[pool] -= count
        state.tokens -= num_tokens
        state.slots -= is_waiting
        grant = Grant(request.request_id, num_tokens, sum(needed), num_cached)
        state.grants[request.request_id] = grant
        state.new_blocks[request.request_id] = needed
        if self._coming is not None:
            self._coming.note(self._requests[request.request_id], grant)
        return grant

    def _place(self, request_id: str, runs: RunPlacement) -> Shortfall | None:
        """Finds the runs that a waiting request reserves, if it wants runs."""
        reservation = self._kv.reservation(self._requests[request_id])
        if not (reservation.contiguous and reservation.num_blocks):
            return None
        starts = runs.place(reservation.num_blocks)
        if starts is None:
            return Shortfall("blocks", runs.missing(reservation.num_blocks), max(self._state.pending))
        self._state.placements[request_id] = starts
        return None

    @property
    def placements(self) -> Mapping[str, tuple[int, ...]]:
        """Of each waiting request with a grant and a contiguous reservation, the first block of its run per group."""
        return self._state.placements

    def preempt(self, request: RequestView, mode: PreemptMode = PreemptMode.RECOMPUTE, keep_blocks: int = 0) -> int:
        request_id = request.request_id
        is_running = request.status is RequestStatus.RUNNING
        is_open = request_id not in self._state.preemptions and (is_running or request_id not in self._state.grants)
        if not is_open or not (is_running or request_id in self._kv.keepers):
            raise ValueError(f"request {request_id} cannot be preempted: it is {request.status}, or was so already")
        if keep_blocks < 0 or (mode is PreemptMode.SWAP and (keep_blocks or not is_running)):
            raise ValueError(f"preemption mode {mode} with keep_blocks={keep_blocks} is not supported; use recompute")
        num_kept = self._kv.kept_blocks(self._requests[request_id], keep_blocks)
        done_mode = self._possible(self._requests[request_id], mode)
        state = self._state
        freed = 0
        grant = state.grants.pop(request_id, None)
        if grant is not None:
            state.tokens += grant.num_tokens
            freed += grant.num_new_blocks
            for pool, count in enumerate(state.new_blocks.pop(request_id)):
                state.available[pool] += count
        if request.num_inflight_tokens or done_mode is PreemptMode.SWAP:
            state.in_use.update(self._held(request_id, num_kept))
        self._matches.pop(request_id, None)
        for pool, block_id in self._held(request_id, num_kept):
            state.holders[pool, block_id] = state.holders.get((pool, block_id), 0) - 1
            if self._num_holders(pool, block_id) > 0:
                continue
            if (pool, block_id) in state.in_use:
                state.pending[pool] += 1
                state.leaving.add((pool, block_id))
                continue
            state.available[pool] += 1
            freed += 1
            if state.runs is not None:
                state.runs.free([(pool, block_id)])
        state.preemptions[request_id] = Preemption(request_id, mode, keep_blocks)
        state.modes[request_id] = done_mode
        state.slots += is_running
        return freed

    def preempt_mode(self, request: RequestView) -> PreemptMode:
        if self._mode == "recompute" or request.num_computed_tokens == 0:
            return PreemptMode.RECOMPUTE
        if self._mode == "swap":
            return PreemptMode.SWAP
        num_bytes = self._kv.host.num_bytes(request.num_computed_tokens)
        is_cheaper = self._cost.is_swap_cheaper(request.num_computed_tokens, num_bytes)
        return PreemptMode.SWAP if is_cheaper else PreemptMode.RECOMPUTE

    def keep_blocks(self, request: RequestView, num_needed: int) -> int:
        if not self._is_partial:
            return 0
        num_blocks = min(len(table) for table in self._kv.tables(request.request_id))
        return self._kv.kept_blocks(self._requests[request.request_id], max(0, num_blocks - num_needed))

    def keepers(self) -> Sequence[RequestView]:
        ids = [i for i in self._kv.keepers if i not in self._state.preemptions and i not in self._state.grants]
        return [self._requests[request_id] for request_id in reversed(ids)]

    def _possible(self, request: Request, mode: PreemptMode) -> PreemptMode:
        """The mode that the host memory has room for; takes that room."""
        if mode is PreemptMode.RECOMPUTE:
            return mode
        if not self._kv.host.capacity_bytes or request.num_inflight_tokens:
            raise ValueError(f"preemption mode {mode} is not supported here; use recompute")
        num_bytes = self._kv.host.num_bytes(request.num_computed_tokens)
        if num_bytes == 0:
            return PreemptMode.RECOMPUTE
        if num_bytes > self._state.host_bytes:
            self._state.num_refused_swaps += 1
            return PreemptMode.RECOMPUTE
        self._state.host_bytes -= num_bytes
        return mode

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
                needed[pool] += max(0, target - len(self._kv.tables(request.request_id)[group]))
                continue
            match = self.match(request.request_id)
            needed[pool] += max(0, target - len(match.block_ids[group]))
            needed[pool] += len(match.imports[group]) if match.imports else 0
        return tuple(needed)

    def _pins(self, request_id: str) -> list[tuple[int, int, bool]]:
        """(pool, block id, whether that makes one available block less) of the blocks that a waiting request found."""
        match, leaving = self.match(request_id), self._state.leaving
        return [
            (pool, block_id, self._num_holders(pool, block_id) == 0 and (pool, block_id) not in leaving)
            for group, pool in enumerate(self._kv.pool_of_group)
            for block_id in match.block_ids[group]
            if block_id != NULL_BLOCK
        ]

    def _held(self, request_id: str, num_kept: int) -> list[tuple[int, int]]:
        """(pool, block id) of what a request holds behind its first `num_kept` blocks."""
        return [
            (pool, block_id)
            for group, pool in enumerate(self._kv.pool_of_group)
            for block_id in self._kv.tables(request_id)[group][num_kept:]
            if block_id != NULL_BLOCK
        ]

    def _num_holders(self, pool: int, block_id: int) -> int:
        return self._kv.pools[pool].blocks.ref_count(block_id) + self._state.holders.get((pool, block_id), 0)
