"""Runs one case of the stress test and checks it: every invariant at every step, every request to its end."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import final

from tokenloom.batch import SchedulePlan
from tokenloom.errors import OverloadedError, RequestError
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerView
from tokenloom.interfaces.scheduler_events import RequestPreempted, SchedulerEvent
from tokenloom.request import FinishReason, Request, RequestStatus
from tokenloom.testing.engine_harness import ChosenDrafts, EngineHarness, oracle_drafts
from tokenloom.testing.stress_case import StressCase
from tokenloom.testing.stress_waits import wait_bounds

__all__ = ["StressCounts", "run_case"]

_WAITS_AGAIN = frozenset({RequestStatus.PREEMPTED, RequestStatus.SWAPPED})


@final
@dataclass(slots=True)
class StressCounts:
    """What happened, summed over cases.

    Of those that ended early (`num_aborted`), `num_aborted_preempted` waited as victims just then. `num_partial` counts
    how often a victim kept blocks, `num_evicted` the cached blocks that made room. `worst_wait` is the largest share of
    its bound that a request waited.
    """

    num_cases: int = 0
    num_steps: int = 0
    num_requests: int = 0
    num_refused: int = 0
    num_overloads: int = 0
    num_aborted: int = 0
    num_aborted_preempted: int = 0
    num_preemptions: int = 0
    num_partial: int = 0
    num_swaps: int = 0
    num_lost_swaps: int = 0
    num_refused_swaps: int = 0
    num_evicted: int = 0
    num_cached_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_computed_tokens: int = 0
    num_accepted_tokens: int = 0
    worst_wait: float = 0.0

    def add(self, other: StressCounts) -> None:
        """Adds what happened in other cases."""
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            setattr(self, field.name, max(mine, theirs) if field.name == "worst_wait" else mine + theirs)


def run_case(case: StressCase, kept: Collection[int] | None = None) -> StressCounts:
    """Runs a case to its end.

    Args:
        case: from `draw_case`.
        kept: indices of the requests that arrive; all by default. For smaller reproductions.

    Raises:
        AssertionError: a check failed. Errors of the engine and of plugins pass through.
    """
    run = _Run(case, range(len(case.requests)) if kept is None else kept)
    run.play()
    run.check_end()
    return run.counts()


@final
class _Run:
    def __init__(self, case: StressCase, kept: Collection[int]) -> None:
        self._case = case
        self._coming = {f"r{index}": case.requests[index] for index in sorted(kept)}
        self._bounds = wait_bounds(case, self._coming)
        self._harness = _build(case)
        self._harness.executor.faults.row_errors = {
            name: asked.fails_at for name, asked in self._coming.items() if asked.fails_at is not None
        }
        self._harness.executor.faults.lost_exports = {name for name, asked in self._coming.items() if asked.loses_swaps}
        self._live: dict[str, Request] = {}
        self._early: set[str] = set()
        self._num_refused = 0
        self._num_overloads = 0
        self._num_aborted_preempted = 0
        self._num_reset = 0
        self._worst_wait = 0.0

    def play(self) -> None:
        """Arrivals, aborts and steps until all have ended."""
        last = max((asked.step for asked in self._coming.values()), default=0)
        total = sum(len(asked.prompt) + asked.max_tokens for asked in self._coming.values())
        for step in range(last + 200 + 20 * total):
            self._arrive(step)
            self._intervene(step)
            if self._harness.engine.has_work():
                self._step()
            elif step >= last:
                return
            else:
                self._harness.clock.advance(1.0)
            self._check_waits(step)
        raise AssertionError(f"{sorted(self._live)} did not end within {step} steps")

    def _arrive(self, step: int) -> None:
        for name, asked in self._coming.items():
            if asked.step != step:
                continue
            request = replace(self._harness.request(name, asked.prompt, asked.max_tokens), **asked.fields)
            is_feasible, has_room = self._is_feasible(request), self._has_room(request)
            try:
                self._harness.add(request)
            except RequestError:
                assert not is_feasible, f"{name} was refused, though it fits {self._harness.engine.limits}"
                self._num_refused += 1
                continue
            except OverloadedError:
                assert not has_room, f"{name} was refused, though there is room in the queue"
                self._num_overloads += 1
                continue
            assert is_feasible, f"{name} was accepted, though it cannot run within {self._harness.engine.limits}"
            assert has_room, f"{name} was accepted, though the queue is full"
            self._live[name] = request

    def _is_feasible(self, request: Request) -> bool:
        limits, count = self._harness.engine.limits, request.num_prompt_tokens
        reserved = self._harness.kv.reserved_blocks(request) * self._case.block_size
        return max(count, reserved) <= limits.max_kv_tokens and count < limits.max_model_len

    def _has_room(self, request: Request) -> bool:
        settings = self._case.scheduler
        new = [request, *(other for other in self._live.values() if other.first_scheduled_time_s is None)]
        num_tokens = sum(other.num_prompt_tokens for other in new)
        num_queued = len(new) - max(0, settings.max_num_seqs - self._harness.engine.num_running)
        has_places = settings.max_queued_requests is None or num_queued <= settings.max_queued_requests
        has_tokens = settings.max_queued_tokens is None or num_tokens <= settings.max_queued_tokens
        return num_queued <= 0 or (has_places and has_tokens)

    def _intervene(self, step: int) -> None:
        engine = self._harness.engine
        if step in self._case.resets:
            self._num_reset += engine.reset_prefix_cache()
        for name, request in list(self._live.items()):
            asked, is_victim = self._coming[name], request.status in _WAITS_AGAIN
            is_due = asked.abort_after is not None and asked.step + asked.abort_after == step
            if is_due or (asked.ends_preempted and is_victim):
                assert engine.abort(name) is not None, f"{name} could not be aborted"
                assert engine.abort(name) is None, f"{name} was aborted twice"
                self._num_aborted_preempted += is_victim
            elif asked.cut_after is not None and request.num_output_tokens >= asked.cut_after:
                assert engine.truncate(name, asked.cut_after, "stop") is not None, f"{name} could not be cut"
                del self._harness.tokens[name][asked.cut_after :]
            else:
                continue
            self._early.add(name)
            del self._live[name]

    def _step(self) -> None:
        num_plans = len(self._harness.executor.plans)
        outputs = self._harness.step()
        plans = self._harness.executor.plans[num_plans:]
        assert len(plans) == 1, f"{len(plans)} plans in one step"
        assert plans[0].rows or plans[0].transfers, f"step {plans[0].step_id} makes no progress"
        for output in outputs:
            if output.finish_reason is not None:
                del self._live[output.request_id]
            if output.finish_reason is FinishReason.ERROR:
                self._early.add(output.request_id)
        if plans[0].transfers:
            self._harness.clock.advance(self._case.swap_delay_s)

    def _check_waits(self, step: int) -> None:
        for name in self._live if self._bounds else ():
            waited, bound = step + 1 - self._coming[name].step, self._bounds[name]
            self._worst_wait = max(self._worst_wait, waited / bound)
            assert waited <= bound, f"{name} starves: not ended after {waited} steps, the stated bound is {bound}"

    def check_end(self) -> None:
        """Nothing is left, and each request yielded what it yields alone, or the beginning of it."""
        harness = self._harness
        harness.check_idle()
        assert harness.kv.host.used_bytes == 0, f"{harness.kv.host.used_bytes} bytes of host memory leaked"
        harness.check_truth(but=self._early)
        if not self._case.combination.can_preempt:
            num_preempted = harness.engine.stats.num_preemptions
            assert num_preempted == 0, f"{num_preempted} preemptions, though memory was reserved for everybody"
        for name in sorted(self._early):
            truth, tokens = harness.model.verdict(harness.requests[name]).token_ids, harness.tokens.get(name, [])
            assert tokens == truth[: len(tokens)], f"{name}: other tokens than alone, before it was ended"

    def counts(self) -> StressCounts:
        """Figures of the whole case."""
        stats, scheduler = self._harness.engine.stats, self._harness.scheduler
        assert isinstance(scheduler, _CountsPartial)
        return StressCounts(
            num_cases=1,
            num_steps=stats.num_steps,
            num_requests=len(self._coming),
            num_refused=self._num_refused,
            num_overloads=self._num_overloads,
            num_aborted=len(self._early),
            num_aborted_preempted=self._num_aborted_preempted,
            num_preemptions=stats.num_preemptions,
            num_partial=scheduler.num_partial,
            num_swaps=stats.num_swaps,
            num_lost_swaps=stats.num_lost_swaps,
            num_refused_swaps=stats.num_refused_swaps,
            num_evicted=sum(pool.num_evicted for pool in self._harness.kv.pools) - self._num_reset,
            num_cached_tokens=stats.num_cached_tokens,
            num_recomputed_tokens=stats.num_recomputed_tokens,
            num_computed_tokens=stats.num_computed_tokens,
            num_accepted_tokens=stats.num_accepted_tokens,
            worst_wait=self._worst_wait,
        )


@final
class _CountsPartial(Scheduler):
    """Passes every call on to the scheduler under test, and counts how often a victim kept blocks."""

    def __init__(self, inner: Scheduler) -> None:
        self._inner = inner
        self.num_partial = 0

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        return self._inner.schedule(view, ledger)

    def observe(self, event: SchedulerEvent) -> None:
        self.num_partial += isinstance(event, RequestPreempted) and event.num_kept_tokens > 0
        self._inner.observe(event)


def _build(case: StressCase) -> EngineHarness:
    most = case.num_drafts
    return EngineHarness(
        num_blocks=case.num_blocks,
        block_size=case.block_size,
        groups=case.groups,
        cache=case.cache.build,
        max_num_seqs=case.scheduler.max_num_seqs,
        budget=case.scheduler.max_num_batched_tokens,
        max_model_len=case.max_model_len,
        vocab_size=case.vocab_size if case.vocab_size > 5 else 5,
        scheduler=lambda context: _CountsPartial(case.scheduler.build(context)),
        draft_policy=ChosenDrafts(lambda *_: most) if most else None,
        drafts=(lambda model: oracle_drafts(model, lambda _, length: length % (most + 1))) if most else None,
        checks="full",
        preempt_mode=case.combination.preempt_mode,
        host_memory_bytes=case.host_memory_bytes,
        partial_preemption=case.partial_preemption,
        max_queued=(case.scheduler.max_queued_requests, case.scheduler.max_queued_tokens),
    )
