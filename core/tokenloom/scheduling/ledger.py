"""The scratch transaction of one step: counts of tokens, slots and blocks, with pins and releases, but no block ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

from tokenloom.batch import Preemption, PreemptMode, SchedulePlan
from tokenloom.interfaces.scheduler import Grant, Ledger, Savepoint, SchedulerView, Shortfall
from tokenloom.kv.manager import KVManager, PrefixMatch
from tokenloom.request import Request, RequestStatus, RequestView
from tokenloom.scheduling.coming_blocks import ComingBlocks
from tokenloom.scheduling.held_blocks import HeldBlocks
from tokenloom.scheduling.ledger_state import LedgerState
from tokenloom.scheduling.preemption_cost import PreemptionCost
from tokenloom.scheduling.run_placement import RunPlacement
from tokenloom.scheduling.table_growth import table_growth

__all__ = ["StepLedger"]

# Looked up in the enum, it would take a tenth of what a reservation takes.
_RUNNING = RequestStatus.RUNNING


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
        self._held = HeldBlocks(kv)
        self._requests = requests
        self._coming = ComingBlocks(kv) if defers and kv.shares_in_flight and view.waiting else None
        self._matches: dict[str, PrefixMatch] = {}
        self._saved: list[LedgerState] = []
        self._last_plan: SchedulePlan | None = None
        self._planned: dict[str, int] = {}
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
    def spare_blocks(self) -> int:
        return self._held.per_group(self._state.available)

    def num_blocks(self, request: RequestView) -> int:
        return self._held.span(request, self._state)

    def num_own_blocks(self, request: RequestView) -> int:
        if request.status is RequestStatus.RUNNING:
            return self._held.num_own(request, None, self._state)
        match = self.match(request.request_id) if self.is_scheduled(request) else None
        return 0 if match is None else self._held.num_own(request, match, self._state)

    def num_granted_tokens(self, request: RequestView) -> int:
        grant = self._state.grants.get(request.request_id)
        return 0 if grant is None else grant.num_tokens

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
        return 0 if request.status is _RUNNING else self.match(request.request_id).num_tokens

    def need(self, request: RequestView) -> int:
        done = request.num_computed_tokens + request.num_inflight_tokens
        known = request.num_tokens + request.num_placeholder_tokens + request.num_drafts
        return known - done if request.status is _RUNNING else known - done - self.cached_tokens(request)

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
        self._last_plan, request_id = None, request.request_id
        if request_id not in self._requests:
            raise ValueError(f"request {request_id} is not in this step's view")
        if request_id in self._state.grants or request_id in self._state.preemptions:
            raise ValueError(f"request {request_id} was scheduled or preempted in this step already")
        need = self.need(request)
        # Half of a budget is easily a float, and would only break the commit half way.
        if not isinstance(num_tokens, int) or not 1 <= num_tokens <= need:
            raise ValueError(f"request {request_id}: {num_tokens!r} tokens reserved, allowed is 1..{need}")
        if num_tokens > self._state.tokens:
            return Shortfall("tokens", num_tokens - self._state.tokens)
        outcome = self._go_on(request, num_tokens) if request.status is _RUNNING else self._start(request, num_tokens)
        if self._coming is not None and isinstance(outcome, Grant):
            self._coming.note(self._requests[request_id], outcome)
        return outcome

    def reserve_next(self, request: RequestView) -> bool:
        state, name, block_size = self._state, request.request_id, self._kv.block_size
        is_open = name in self._requests and name not in state.grants and name not in state.preemptions
        done = request.num_computed_tokens + request.num_inflight_tokens
        need = request.num_tokens + request.num_placeholder_tokens + request.num_drafts - done
        if request.status is not _RUNNING or not is_open or need != 1 or state.tokens < 1:
            return False
        for table in self._kv.tables(name):
            if len(table) * block_size <= done:
                return False
        self._last_plan, grant = None, state.grant(name, 1, 0, done // block_size + 1, ())
        if self._coming is not None:
            self._coming.note(self._requests[name], grant)
        return True

    def _go_on(self, request: RequestView, num_tokens: int) -> Grant | Shortfall:
        """Reserves for a running request."""
        span = -(-(request.num_computed_tokens + request.num_inflight_tokens + num_tokens) // self._kv.block_size)
        needed = table_growth(self._kv, request.request_id, span, None)
        shortfall = self._state.lacking(needed, ()) if needed else None
        return self._state.grant(request.request_id, num_tokens, 0, span, needed) if shortfall is None else shortfall

    def _start(self, request: RequestView, num_tokens: int) -> Grant | Shortfall:
        """Reserves for a waiting request: a slot and what it found in the cache, too."""
        state, request_id = self._state, request.request_id
        match = self.match(request_id)
        if self._coming is not None and request.status is not RequestStatus.SWAPPED:
            num_coming = self._coming.num_tokens(self._requests[request_id], match.num_tokens, state.grants)
            if num_coming:
                return Shortfall("prefix", num_coming, num_coming)
        if state.slots < 1:
            return Shortfall("slots", 1)
        num_slots = request.num_computed_tokens + request.num_inflight_tokens + match.num_tokens + num_tokens
        span = max(-(-num_slots // self._kv.block_size), self._kv.reserved_blocks(self._requests[request_id]))
        pins, needed = self._held.pins(match, state), table_growth(self._kv, request_id, span, match)
        shortfall = state.lacking(needed, pins)
        if shortfall is None and state.runs is not None:
            shortfall = self._place(request_id, state.runs)
        if shortfall is not None:
            return shortfall
        for pool, block_id, is_available in pins:
            state.holders[pool, block_id] = state.holders.get((pool, block_id), 0) + 1
            state.available[pool] -= is_available
            if (pool, block_id) in state.leaving:
                state.leaving.discard((pool, block_id))
                state.pending[pool] -= 1
        state.slots -= 1
        return state.grant(request_id, num_tokens, match.num_tokens, span, needed)

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
        self._last_plan, request_id = None, request.request_id
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
            del state.spans[request_id]
            for pool, count in enumerate(state.new_blocks.pop(request_id, ())):
                state.available[pool] += count
        if request.num_inflight_tokens or done_mode is PreemptMode.SWAP:
            state.in_use.update(self._held.in_table(request_id, num_kept))
        self._matches.pop(request_id, None)
        for pool, block_id in self._held.in_table(request_id, num_kept):
            state.holders[pool, block_id] = state.holders.get((pool, block_id), 0) - 1
            if self._held.num_holders(pool, block_id, state) > 0:
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
        self._state, self._last_plan = self._saved[savepoint].copy(), None
        del self._saved[savepoint + 1 :]

    def plan(self) -> SchedulePlan:
        self._planned = {request_id: grant.num_tokens for request_id, grant in self._state.grants.items()}
        self._last_plan = SchedulePlan(dict(self._planned), tuple(self._state.preemptions.values()))
        return self._last_plan

    def made(self, plan: SchedulePlan) -> bool:
        """Whether `plan` is what this ledger's current records say, and so legal by construction."""
        return plan is self._last_plan and plan.num_scheduled_tokens == self._planned
