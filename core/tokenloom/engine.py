"""The step loop: schedule, check, commit memory, launch, land, commit tokens. It owns every invariant."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from threading import Lock
from typing import final

from tokenloom.batch import RowPlan, RowResult, SchedulePlan, StepPlan, StepResult
from tokenloom.commit import commit_row, cut_output, make_output
from tokenloom.draft_lengths import DraftLengths
from tokenloom.engine_output import EngineOutput, EngineStats
from tokenloom.engine_parts import EngineParts
from tokenloom.errors import EngineBusyError, EngineDeadError, PluginContractError, TokenloomError
from tokenloom.feasibility import RequestLimits, check_feasible
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.executor import StepHandle
from tokenloom.interfaces.scheduler import SchedulerView
from tokenloom.interfaces.scheduler_events import StepLanded
from tokenloom.kv.draft_room import DraftRoom
from tokenloom.kv.fragmentation import KVFragmentation
from tokenloom.kv.reservation import check_reservation
from tokenloom.plugin_guard import plugin_call
from tokenloom.request import FinishReason, Request
from tokenloom.request_book import RequestBook
from tokenloom.row_plan import build_row
from tokenloom.scheduling.ledger import StepLedger
from tokenloom.scheduling.plan_check import check_plan, check_plan_shape
from tokenloom.scheduling.preemption_cost import PreemptionCost
from tokenloom.view_guard import progress_of

__all__ = ["Engine"]


@dataclass(frozen=True, slots=True)
class _Launched:
    plan: StepPlan
    handle: StepHandle
    start_s: float
    plan_s: float


@final
class Engine:
    """Runs requests to their end. One thread calls it; outputs come from `step`."""

    def __init__(self, parts: EngineParts) -> None:
        self._parts = parts
        self._kv = parts.kv
        self._clock = parts.clock
        self._step_id = 0
        self._is_dead = False
        self._is_closed = False
        self._stepping = Lock()
        self._cost = PreemptionCost()
        self.stats = EngineStats()
        self._book = RequestBook(parts, self.stats)
        self._drafts = DraftLengths(parts.draft_policy, parts.labels["spec_decode.policy"], self.stats)
        self.facts = parts.executor.model_facts()
        self.limits = RequestLimits(self.facts.max_model_len, parts.kv.max_sequence_tokens, self.facts.vocab_size)

    # ---- requests ----

    def add_request(self, request: Request) -> None:
        """Accepts a request; see `add_requests`."""
        self.add_requests((request,))

    def add_requests(self, requests: Sequence[Request]) -> None:
        """Accepts requests, all or none.

        Raises:
            RequestError: one can never run; names the limit that it exceeds.
            OverloadedError: more would wait than the configuration allows.
        """
        self._require_idle()
        limits, block_size, cache = self.limits, self._kv.block_size, self._parts.labels["cache"]
        for request in requests:
            num_reserved = self._kv.reserved_blocks(request) * block_size
            check_feasible(request, limits, check_reservation(num_reserved, limits.max_model_len, block_size, cache))
        self._book.add(requests)

    def abort(self, request_id: str) -> EngineOutput | None:
        """Ends a request now and frees its memory. Unknown or finished ids are ignored (None)."""
        request = self._book.requests.get(request_id)
        return None if request is None else self._end(request, FinishReason.ABORT)

    def truncate(self, request_id: str, num_output_tokens: int, stop_reason: str) -> EngineOutput | None:
        """Ends a request at a stop string, keeping its first `num_output_tokens` tokens. None once it has ended."""
        request = self._book.requests.get(request_id)
        if request is None:
            return None
        self.stats.num_output_tokens -= cut_output(request, num_output_tokens, stop_reason)
        return self._end(request, FinishReason.STOP)

    @property
    def is_alive(self) -> bool:
        """Whether the engine can run steps: neither closed nor stopped after a failure."""
        return not (self._is_dead or self._is_closed)

    @property
    def num_waiting(self) -> int:
        """Requests that hold no slot."""
        return len(self._book.waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return self._book.num_running

    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._book.requests)

    def kv_usage(self) -> dict[str, int]:
        """KV blocks by state, over all pools: free, active, cached, in_transfer, null."""
        return dict(self._kv.usage())

    def kv_fragmentation(self) -> KVFragmentation:
        """How much of the KV memory holds tokens, and what keeps the rest from use."""
        return self._kv.fragmentation(self._book.requests.values())

    def kv_map(self, max_cells: int) -> list[str]:
        """Every block of each pool as a letter, or so many that `max_cells` letters suffice; see `BlockPool.map`."""
        return [pool.blocks.map(max_cells) for pool in self._kv.pools]

    def reset_prefix_cache(self) -> int:
        """Evicts every cached block that no request uses; returns how many."""
        return self._kv.reset_prefix_cache()

    def replace_scheduler(self, choice: PluginChoice) -> None:
        """Lets another scheduler decide from now on; no request may be live."""
        assert not self.has_work(), f"{choice.name} would not know the {len(self._book.requests)} live requests"
        self._parts = self._parts.with_scheduler(choice)
        self._book.replace_scheduler(self._parts.scheduler, self._parts.labels["scheduler"])

    def close(self) -> None:
        """Frees the model and its memory; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._parts.executor.close()
            self._parts.on_close(asdict(self.stats))

    # ---- one step ----

    def step(self) -> list[EngineOutput]:
        """Runs one step; returns the news of every request that got tokens or ended. Empty when there is no work.

        Raises:
            PluginContractError: a plugin broke its contract. After an illegal plan the engine can go on, for nothing
                was committed; after any other breach it cannot.
            EngineDeadError: the executor or a policy failed in mid-step; the engine cannot go on.
        """
        self._require_idle()
        if not self._book.requests:
            return []
        with self._stepping:
            return self._step()

    def _step(self) -> list[EngineOutput]:
        start_s = self._clock.now()
        plan, ledger = self._schedule(start_s)
        with self._fatal():
            outputs = self._land(self._launch(plan, ledger, start_s))
            if self._parts.checks == "full":
                self._kv.check()
            elif self._parts.checks == "cheap":
                self._kv.check_counts()
        return outputs

    def _require_idle(self) -> None:
        if not self.is_alive:
            raise EngineDeadError("the engine was closed, or stopped after an earlier failure; build a new one")
        self._require_not_stepping()

    def _require_not_stepping(self) -> None:
        if self._stepping.locked():
            raise EngineBusyError("the engine is in mid-step; call it from one thread, and not from its plugins")

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        """From the commit of a plan to the landing of its step, a failure that is not one request's ends the engine."""
        try:
            yield
        except BaseException as error:
            self._is_dead = True
            if isinstance(error, TokenloomError) or not isinstance(error, Exception):
                raise
            raise EngineDeadError(f"step {self._step_id} failed: {type(error).__name__}: {error}") from error

    def _launch(self, plan: SchedulePlan, ledger: StepLedger, start_s: float) -> _Launched:
        step_plan = self._commit_plan(plan, ledger)
        launch_s = self._clock.now()
        return _Launched(step_plan, self._parts.executor.launch(step_plan), start_s, launch_s - start_s)

    def _schedule(self, now_s: float) -> tuple[SchedulePlan, StepLedger]:
        """Asks the scheduler for a plan and checks it; nothing is committed. Returns a ledger that holds the plan."""
        book, is_full = self._book, self._parts.checks == "full"
        view = SchedulerView(self._step_id, now_s, book.waiting, book.running, self._parts.limits)

        def build_ledger() -> StepLedger:
            return StepLedger(view, self._kv, book.requests, defers=False)

        ledger, name = StepLedger(view, self._kv, book.requests, cost=self._cost), self._parts.labels["scheduler"]
        before = progress_of((*book.running, *book.waiting)) if is_full else None
        with plugin_call(name, "schedule() returns a plan"):
            plan = self._parts.scheduler.schedule(view, ledger)
        if before is not None and before != progress_of((*book.running, *book.waiting)):
            self._is_dead = True
            raise PluginContractError(name, "schedule() only reads its view", "a request was changed")
        # A plan that the ledger itself wrote down is legal by construction, but for the progress rule.
        check_plan_shape(plan, name)
        if is_full or not ledger.made(plan) or not plan.num_scheduled_tokens:
            ledger = check_plan(plan, view, build_ledger, name, num_inflight=0)
        return plan, ledger

    def _commit_plan(self, plan: SchedulePlan, ledger: StepLedger) -> StepPlan:
        """Carries out a legal plan: pins what was found, takes victims' memory, allocates. Cannot fail half way."""
        book, counts = self._book, plan.num_scheduled_tokens
        requests, new_ids = book.requests, counts.keys() - book.running_ids
        self._kv.next_tick()
        for request_id in counts:
            if request_id in new_ids:
                book.admit(requests[request_id], ledger.match(request_id))
        for victim in ledger.preemptions:
            book.preempt(requests[victim.request_id], victim.mode, victim.keep_blocks)
        self.stats.num_refused_swaps += ledger.num_refused_swaps
        for request_id, starts in ledger.placements.items():
            self._kv.place(requests[request_id], starts)
        room = DraftRoom(self._kv, ledger.spare_blocks) if self._kv.draft_groups else None
        limits = self._drafts.choose([requests[i] for i in counts], book.num_running)
        rows = tuple([build_row(requests[i], n, self._kv, i in new_ids, limits[i], room) for i, n in counts.items()])
        book.tell_events()
        return StepPlan(self._step_id, rows, book.take_removed(), self._kv.take_transfers())

    def _land(self, launched: _Launched) -> list[EngineOutput]:
        result = launched.handle.result()
        assert result.step_id == self._step_id, f"step {result.step_id} landed, expected {self._step_id}"
        landed_s = self._clock.now()
        self._step_id += 1
        self._kv.next_tick()
        self._kv.land_transfers()
        self._book.lose(result.lost)
        requests, outputs = self._book.requests, list[EngineOutput]()
        for row, row_result in zip(launched.plan.rows, result.rows, strict=True):
            # A request that ended while the step was in flight takes nothing from it.
            request = requests.get(row.request_id)
            output = None if request is None else self._commit(request, row, row_result, landed_s)
            if output is not None:
                outputs.append(output)
        self._report(launched, result, outputs, landed_s)
        return outputs

    def _commit(self, request: Request, row: RowPlan, result: RowResult, now_s: float) -> EngineOutput | None:
        assert result.request_id == row.request_id, f"rows out of order: {result.request_id}, {row.request_id}"
        num_before, num_recomputed = len(request.output_token_ids), request.num_recomputed_tokens
        reason = commit_row(request, row, result)
        if request.num_recomputed_tokens != num_recomputed:
            self.stats.num_recomputed_tokens += request.num_recomputed_tokens - num_recomputed
        if request.first_token_time_s is None and result.token_ids:
            request.first_token_time_s = now_s
        if request.error is None:
            self._kv.publish(request)
        if reason is not None:
            self._finish(request, reason)
        return make_output(request, num_before, result, now_s) if reason is not None or result.token_ids else None

    # ---- endings and reports ----

    def _end(self, request: Request, reason: FinishReason) -> EngineOutput:
        """Ends a request between steps."""
        self._require_not_stepping()
        now_s = self._clock.now()
        self._finish(request, reason)
        self._book.tell_events()
        return make_output(request, request.num_output_tokens, RowResult(request.request_id, []), now_s)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        self._book.finish(request, reason)
        self._drafts.forget(request.request_id)

    def _report(
        self, launched: _Launched, result: StepResult, outputs: Sequence[EngineOutput], landed_s: float
    ) -> None:
        """Tells the policies what happened, and counts."""
        self._book.tell_events()
        self._drafts.observe(launched.plan, result, landed_s - launched.start_s)
        num_tokens = launched.plan.num_tokens
        emitted = {output.request_id: len(output.token_ids) for output in outputs}
        self.stats.num_output_tokens += sum(emitted.values())
        duration_s = landed_s - launched.start_s
        moved_bytes = self._kv.host.moved_bytes(launched.plan.transfers)
        self._cost.observe(num_tokens, duration_s, moved_bytes, result.times_s.get("transfer", 0.0))
        self._book.tell(StepLanded(landed_s, result.step_id, duration_s, num_tokens, emitted))
        self.stats.add_step(num_tokens, launched.plan_s, result.times_s, self._clock.now() - landed_s)
