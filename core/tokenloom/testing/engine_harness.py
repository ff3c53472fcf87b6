"""An engine over the stub executor, requests for it, and the checks that hold after every step and at the end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Literal, final

from tokenloom.batch import PreemptMode, SchedulePlan
from tokenloom.clock import VirtualClock
from tokenloom.engine import Engine
from tokenloom.engine_output import EngineOutput
from tokenloom.engine_parts import EngineParts
from tokenloom.interfaces.cache import CacheContext, PrefixCache
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import RequestPreempted, SchedulerEvent
from tokenloom.interfaces.spec_decode import DraftPolicy, VerifiedDrafts
from tokenloom.kv.manager import KVManager
from tokenloom.plugins import default_registry
from tokenloom.request import FinishReason, Request, RequestView
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.stub_executor import Drafts, StubExecutor
from tokenloom.testing.stub_model import StubModel, full_group
from tokenloom.testing.suite import build_choice

__all__ = ["ChosenDrafts", "EngineHarness", "PreemptAt", "build_fcfs", "build_prefix_cache", "oracle_drafts"]


def build_prefix_cache(name: str, context: CacheContext) -> PrefixCache:
    """A registered cache, e.g. the built-in `hash` or `none`, at its defaults."""
    cache = build_choice(default_registry().get("cache", name).info, {}).build(context)
    assert isinstance(cache, PrefixCache), f"cache={name} builds a {type(cache).__name__}"
    return cache


def build_fcfs(context: SchedulerContext, max_chunk_tokens: int | None = None) -> Scheduler:
    """The built-in scheduler `fcfs`."""
    info = default_registry().get("scheduler", "fcfs").info
    scheduler = build_choice(info, {"max_chunk_tokens": max_chunk_tokens}).build(context)
    assert isinstance(scheduler, Scheduler), f"scheduler=fcfs builds a {type(scheduler).__name__}"
    return scheduler


def oracle_drafts(model: StubModel, num_right: Callable[[str, int], int]) -> Drafts:
    """A drafter that knows the truth: num_right(request_id, num_tokens) right drafts, then wrong ones."""

    def propose(request_id: str, token_ids: Sequence[int], max_drafts: int) -> tuple[list[int], list[int]]:
        prefix, drafts = model.prefix(token_ids), list[int]()
        right = num_right(request_id, len(token_ids))
        for index in range(max_drafts):
            token_id = model.next_token(prefix)
            drafts.append(token_id if index < right else (token_id + 1) % model.vocab_size)
            prefix = model.extend(prefix, drafts[-1])
        return drafts, []

    return propose


@final
class ChosenDrafts(DraftPolicy):
    """Draft lengths from a function of (request, num_running); remembers what it was told."""

    def __init__(self, choose: Callable[[RequestView, int], int]) -> None:
        self._choose = choose
        self.observed: list[VerifiedDrafts] = []
        self.forgotten: list[str] = []

    def num_drafts(self, request: RequestView, num_running: int) -> int:
        return self._choose(request, num_running)

    def observe(self, verified: Sequence[VerifiedDrafts], duration_s: float) -> None:  # noqa: ARG002
        self.observed.extend(verified)

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)


@final
class PreemptAt(Scheduler):
    """Preempts a request the first time it has at least so many output tokens, then lets another scheduler plan."""

    def __init__(
        self, inner: Scheduler, positions: dict[str, list[int]], mode: PreemptMode = PreemptMode.RECOMPUTE
    ) -> None:
        self._inner = inner
        self._mode = mode
        self._due = {request_id: sorted(counts) for request_id, counts in positions.items()}

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        for request in view.running:
            due = self._due.get(request.request_id)
            if due and request.num_output_tokens >= due[0]:
                ledger.preempt(request, self._mode)
        return self._inner.schedule(view, ledger)

    def observe(self, event: SchedulerEvent) -> None:
        if isinstance(event, RequestPreempted) and self._due.get(event.request.request_id):
            self._due[event.request.request_id].pop(0)
        self._inner.observe(event)


@final
class EngineHarness:
    """One engine, its parts within reach, and the outputs so far by request id."""

    def __init__(
        self,
        *,
        num_blocks: Sequence[int] = (64,),
        block_size: int = 4,
        groups: Sequence[KVGroupSpec] | None = None,
        cache: str | Callable[[CacheContext], PrefixCache] = "hash",
        max_num_seqs: int = 8,
        budget: int = 64,
        max_model_len: int = 128,
        vocab_size: int = 50_000,
        scheduler: Callable[[SchedulerContext], Scheduler] = build_fcfs,
        draft_policy: DraftPolicy | None = None,
        drafts: Callable[[StubModel], Drafts] | None = None,
        checks: str = "full",
        preempt_mode: Literal["recompute", "swap", "cheaper"] = "recompute",
        host_memory_bytes: int = 0,
        partial_preemption: bool = False,
        max_queued: tuple[int | None, int | None] = (None, None),
    ) -> None:
        """`max_queued`: most requests, and most of their prompt tokens, that wait for their start."""

        def build_cache(context: CacheContext) -> PrefixCache:
            return build_prefix_cache(cache, context) if isinstance(cache, str) else cache(context)

        self.model = StubModel(vocab_size)
        self.clock = VirtualClock()
        self.executor = StubExecutor(
            self.model,
            num_blocks=num_blocks,
            block_size=block_size,
            groups=(full_group(),) if groups is None else groups,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
            drafts=None if drafts is None else drafts(self.model),
        )
        self.kv = self._build_kv(block_size, build_cache, host_memory_bytes)
        usable = self.kv.num_usable_blocks
        sizes = (max_num_seqs, budget, max_model_len, block_size, usable)
        limits = SchedulerContext(*sizes, preempt_mode, partial_preemption, *max_queued)
        self.scheduler = scheduler(limits)
        self.num_closed = 0
        self.engine = Engine(
            EngineParts(
                executor=self.executor,
                scheduler=self.scheduler,
                kv=self.kv,
                draft_policy=draft_policy,
                limits=limits,
                clock=self.clock,
                checks=checks,
                labels={kind: f"{kind}=test" for kind in ("scheduler", "cache", "spec_decode.policy")},
                on_close=self._closed,
            )
        )
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, EngineOutput] = {}
        self.requests: dict[str, Request] = {}

    def _build_kv(
        self, block_size: int, build_cache: Callable[[CacheContext], PrefixCache], host_memory_bytes: int
    ) -> KVManager:
        facts = self.executor.model_facts()
        return KVManager(
            facts.kv_groups,
            facts.num_blocks,
            block_size,
            facts.block_root,
            lambda count: build_cache(CacheContext(block_size, count, facts.max_model_len)),
            self.clock,
            "cache=test",
            host_memory_bytes,
            copies_blocks=True,
        )

    def _closed(self, totals: dict[str, object]) -> None:  # noqa: ARG002
        self.num_closed += 1

    def request(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int | None = 8,
        *,
        stop: Sequence[int] = (),
        min_tokens: int = 0,
        logprobs: int | None = None,
        cache_salt: str = "",
    ) -> Request:
        """A request within the engine's limits."""
        longest = self.engine.limits.max_total_tokens
        return Request(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            params=SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens, logprobs=logprobs),
            seed=0,
            max_total_tokens=longest if max_tokens is None else min(longest, len(prompt) + max_tokens),
            arrival_time_s=self.clock.now(),
            cache_salt=cache_salt,
            stop_token_ids=frozenset(stop),
        )

    def add(self, *requests: Request) -> None:
        """Adds requests, in order of arrival."""
        for request in requests:
            self.engine.add_request(request)
            self.requests[request.request_id] = request

    def step(self) -> list[EngineOutput]:
        """One step and the checks after it."""
        self.clock.advance(1.0)
        outputs = self.engine.step()
        for output in outputs:
            known = self.last.get(output.request_id)
            assert known is None or known.finish_reason is None, f"{output.request_id} goes on after its end"
            assert output.token_ids or output.finish_reason, f"{output.request_id}: an output without news"
            self.tokens.setdefault(output.request_id, []).extend(output.token_ids)
            self.last[output.request_id] = output
        self.check_blocks()
        return outputs

    def check_blocks(self) -> None:
        """free + active + cached + in_transfer + null == total."""
        usage = self.engine.kv_usage()
        assert sum(usage.values()) == sum(self.executor.model_facts().num_blocks), f"blocks lost: {usage}"
        assert usage["null"] == len(self.kv.pools), f"{usage}"

    def run(self, *requests: Request, max_steps: int = 2_000) -> None:
        """Adds requests and steps until the engine is empty; too many steps is a failure, as a hang would be."""
        self.add(*requests)
        for _ in range(max_steps):
            if not self.engine.has_work():
                break
            self.step()
        assert not self.engine.has_work(), f"work left after {max_steps} steps"
        self.check_idle()

    def check_idle(self) -> None:
        """No block is held once every request has ended."""
        usage = self.engine.kv_usage()
        assert usage["active"] == 0, f"blocks leaked: {usage}"
        assert usage["in_transfer"] == 0, f"blocks leaked: {usage}"
        left = self.engine.num_running + self.engine.num_waiting
        assert left == 0, f"{left} requests are left"
        self.kv.check()

    def check_truth(self, *, but: Collection[str] = ()) -> None:
        """Each request yielded exactly what it yields alone, except those that did not run to their own end."""
        for request_id in [request_id for request_id in self.requests if request_id not in but]:
            verdict = self.model.verdict(self.requests[request_id])
            assert self.tokens.get(request_id) == verdict.token_ids, f"{request_id}: other tokens than alone"
            assert self.last[request_id].finish_reason is verdict.reason, f"{request_id}: {self.last[request_id]}"

    def reason(self, request_id: str) -> FinishReason | None:
        """Why a request ended."""
        return self.last[request_id].finish_reason
