"""A simulated engine beside another one: the same parts, limits and requests, with known output tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from tokenloom.batch import StepPlan
from tokenloom.clock import VirtualClock
from tokenloom.engine import Engine
from tokenloom.engine_parts import EngineParts
from tokenloom.executors.simulated import SimulatedExecutor, SimulatedModel
from tokenloom.executors.step_time import AttentionSpan, StepCosts
from tokenloom.executors.synthetic_tokens import TokenSource
from tokenloom.interfaces.cache import CacheContext, PrefixCache
from tokenloom.interfaces.executor import Executor, ModelFacts, StepHandle
from tokenloom.interfaces.scheduler import Scheduler, SchedulerContext
from tokenloom.interfaces.spec_decode import DraftPolicy
from tokenloom.kv.manager import KVManager
from tokenloom.request import Request
from tokenloom.testing.engine_harness import build_prefix_cache

FREE = StepCosts(step_s=0.0, prefill_token_s=0.0, decode_row_s=0.0, kv_byte_s=0.0)


@final
class KnownTokens(TokenSource):
    """Tokens from a table by seed, and drafts that are right for so many positions: right(seed, position)."""

    def __init__(self, outputs: Mapping[int, Sequence[int]], right: Callable[[int, int], int]) -> None:
        self._outputs = outputs
        self._right = right

    def token(self, seed: int, choice_index: int, position: int) -> int:
        known = self._outputs[seed]
        # A draft may lie beyond the end of its request.
        return known[position] if position < len(known) else 0

    def is_foreseen(self, seed: int, choice_index: int, position: int, depth: int) -> bool:
        return depth < self._right(seed, position - depth)


@final
class Recording(Executor):
    """Another executor, with its plans."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.plans: list[StepPlan] = []

    def model_facts(self) -> ModelFacts:
        return self.inner.model_facts()

    def launch(self, plan: StepPlan) -> StepHandle:
        self.plans.append(plan)
        return self.inner.launch(plan)

    def close(self) -> None:
        self.inner.close()


@final
class Timed(Executor):
    """An executor whose steps take one second each; those that only move KV take none."""

    def __init__(self, inner: Executor, clock: VirtualClock) -> None:
        self._inner = inner
        self._clock = clock

    def model_facts(self) -> ModelFacts:
        return self._inner.model_facts()

    def launch(self, plan: StepPlan) -> StepHandle:
        handle = self._inner.launch(plan)
        self._clock.advance(1.0 if plan.rows else 0.0)
        return handle

    def close(self) -> None:
        self._inner.close()


@dataclass(frozen=True)
class Twin:
    """One engine and what is watched of it."""

    engine: Engine
    executor: Recording
    clock: VirtualClock


def build_twin(
    facts: ModelFacts,
    limits: SchedulerContext,
    tokens: TokenSource,
    scheduler: Callable[[SchedulerContext], Scheduler],
    *,
    cache: str | Callable[[CacheContext], PrefixCache] = "hash",
    draft_policy: DraftPolicy | None = None,
    costs: StepCosts = FREE,
    host_memory_bytes: int = 0,
) -> Twin:
    """A simulated engine with the facts and limits of another one. Transfers take no time."""
    clock = VirtualClock()
    model = SimulatedModel(facts, costs, spans=(AttentionSpan(None, 4, 1.0),), host_bytes_per_s=math.inf)
    executor = SimulatedExecutor(model, tokens, clock)
    return assemble(executor, clock, limits, scheduler, cache, draft_policy, host_memory_bytes)


def assemble(
    inner: Executor,
    clock: VirtualClock,
    limits: SchedulerContext,
    scheduler: Callable[[SchedulerContext], Scheduler],
    cache: str | Callable[[CacheContext], PrefixCache] = "hash",
    draft_policy: DraftPolicy | None = None,
    host_memory_bytes: int = 0,
) -> Twin:
    """An engine on any executor."""

    def build_cache(context: CacheContext) -> PrefixCache:
        return build_prefix_cache(cache, context) if isinstance(cache, str) else cache(context)

    executor, facts = Recording(inner), inner.model_facts()
    kv = KVManager(
        facts.kv_groups,
        facts.num_blocks,
        limits.block_size,
        facts.block_root,
        lambda count: build_cache(CacheContext(limits.block_size, count, facts.max_model_len)),
        clock,
        "cache=test",
        host_memory_bytes,
    )
    parts = EngineParts(
        executor=executor,
        scheduler=scheduler(limits),
        kv=kv,
        draft_policy=draft_policy,
        limits=limits,
        clock=clock,
        checks="full",
        labels={kind: f"{kind}=test" for kind in ("scheduler", "cache", "spec_decode.policy")},
        on_close=lambda _: None,
    )
    return Twin(Engine(parts), executor, clock)


def fresh(request: Request) -> Request:
    """The same request before anything happened to it."""
    return replace(request, prompt_token_ids=list(request.prompt_token_ids), output_token_ids=[])


def run_all(twin: Twin, requests: Sequence[Request], aborts: Mapping[str, float] = {}) -> dict[str, list[int]]:
    """Adds requests as they arrive and runs until all is done; returns output tokens by request.

    `aborts`: request_id -> the time from which on it is aborted.
    """
    engine, clock = twin.engine, twin.clock
    coming, tokens = list(requests), dict[str, list[int]]()
    for _ in range(5_000):
        while coming and coming[0].arrival_time_s <= clock.now():
            engine.add_request(coming.pop(0))
        for request_id in [name for name, time_s in aborts.items() if time_s <= clock.now()]:
            engine.abort(request_id)
        if not engine.has_work() and not coming:
            return tokens
        if not engine.has_work():
            clock.advance_to(coming[0].arrival_time_s)
            continue
        for output in engine.step():
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
    raise AssertionError("work left")


def decisions(plans: Sequence[StepPlan]) -> list[Any]:
    """What was decided in each step: who runs, on which blocks, who left, what was swapped; not what drafts say."""
    return [
        (
            plan.removed,
            [
                (
                    row.request_id,
                    row.num_computed_tokens,
                    row.num_scheduled_tokens,
                    len(row.draft_token_ids),
                    row.block_updates,
                    row.samples,
                    row.max_drafts,
                    None if row.new is None else row.new.token_ids,
                )
                for row in plan.rows
            ],
            plan.transfers,
        )
        for plan in plans
    ]
