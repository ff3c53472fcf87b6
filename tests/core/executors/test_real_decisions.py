"""Equal arrivals, tokens, acceptance and step times: equal decisions, on a real model and simulated, whatever decides.

Cases hold every pair of scheduler, victim, admission, cache, eviction policy and mode; memory is short in all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from tests.core.executors.simulated_twin import (
    KnownTokens,
    Timed,
    Twin,
    assemble,
    build_twin,
    decisions,
    fresh,
    run_all,
)
from tests.core.executors.test_simulated_parity import STEP_1S, mixed_requests, num_right
from tests.e2e.covering_array import pairwise_cases
from tokenloom.clock import VirtualClock
from tokenloom.interfaces.cache import CacheConfig, CacheContext, PrefixCache
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.scheduler import Scheduler, SchedulerContext
from tokenloom.interfaces.spec_decode import Drafter
from tokenloom.plugins import default_registry
from tokenloom.request import Request
from tokenloom.testing.draft_stubs import OracleDrafter
from tokenloom.testing.engine_harness import ChosenDrafts, build_fcfs
from tokenloom.testing.suite import build_choice
from tokenloom.testing.tiny_decoder import TinyDecoder
from tokenloom.testing.tiny_engine import MAX_MODEL_LEN, TinyExecutor, TinySettings


def own_names(kind: str) -> tuple[str, ...]:
    return tuple(plugin.info.name for plugin in default_registry().plugins(kind) if plugin.package == "tokenloom")


WITHOUT_EVICTION = ("none", "contiguous")
"""Caches that find nothing again; in a case the `index` does not count then."""
AXES: dict[str, tuple[Any, ...]] = {
    "scheduler": own_names("scheduler"),
    "victim": own_names("scheduler.victim"),
    "admission": own_names("scheduler.admission"),
    "eviction": (*own_names("cache.eviction"), *WITHOUT_EVICTION),
    "index": tuple(name for name in own_names("cache") if name not in WITHOUT_EVICTION),
    "mode": ("recompute", "swap", "cheaper"),
    "partial": (False, True),
    "host_bytes": (2**30, 4_000),
    "num_drafts": (0, 2),
}
CASES = pairwise_cases(AXES)
ABORTS = {"4": 6.0, "11": 9.0, "20": 12.0}
SAME = (
    "num_preemptions",
    "num_swaps",
    "num_refused_swaps",
    "num_recomputed_tokens",
    "num_cached_tokens",
    "num_finished",
)


SETTINGS: dict[str, dict[str, Any]] = {"slo_adaptive": {"target_tpot_s": 5.0}}
"""A step takes a second: a target below that would have requests run one at a time."""


def chosen(kind: str, name: str, **parts: str) -> PluginChoice:
    """A plugin with these parts, where it has such parts."""
    info = default_registry().get(kind, name).info
    nested = {part: build_choice(default_registry().get(f"{kind}.{part}", of).info, {}) for part, of in parts.items()}
    own = {part: choice for part, choice in nested.items() if f"{kind}.{part}" in info.sub_kinds}
    return build_choice(info, {**own, **SETTINGS.get(name, {})})


def build_scheduler(case: dict[str, Any], context: SchedulerContext) -> Scheduler:
    choice = chosen("scheduler", case["scheduler"], victim=case["victim"], admission=case["admission"])
    scheduler = choice.build(context)
    assert isinstance(scheduler, Scheduler)
    return scheduler


def build_cache(case: dict[str, Any], context: CacheContext) -> PrefixCache:
    eviction, index = case["eviction"], case["index"]
    choice = chosen("cache", eviction) if eviction in WITHOUT_EVICTION else chosen("cache", index, eviction=eviction)
    config = choice.config
    assert isinstance(config, CacheConfig)
    return config.build(context)


def real_executor(settings: TinySettings, clock: VirtualClock, drafter: Drafter) -> Timed:
    return Timed(TinyExecutor(TinyDecoder(), drafter, settings, clock, "test"), clock)


def oracle(known: dict[str, Sequence[int]]) -> OracleDrafter:
    return OracleDrafter(known, lambda name, position: num_right(int(name), position), TinyDecoder().vocab_size)


@pytest.fixture(scope="module")
def known_outputs() -> dict[str, list[int]]:
    """What each request yields where nothing is short and nobody drafts."""
    clock, settings = VirtualClock(), TinySettings()
    limits = SchedulerContext(8, settings.budget, MAX_MODEL_LEN, settings.block_size, settings.num_blocks - 1)
    executor = real_executor(settings, clock, oracle({}))
    return run_all(assemble(executor, clock, limits, build_fcfs), mixed_requests())


def twins(case: dict[str, Any], requests: Sequence[Request], known: dict[str, list[int]]) -> tuple[Twin, Twin]:
    """A real engine and a simulated one of a case."""
    clock, most = VirtualClock(), case["num_drafts"]
    num_blocks = 80 if case["eviction"] == "contiguous" else 24
    limits = SchedulerContext(6, 24, MAX_MODEL_LEN, 4, num_blocks - 1, case["mode"], case["partial"])
    settings = TinySettings(num_blocks=num_blocks, budget=24, max_num_seqs=6)

    def scheduler(context: SchedulerContext) -> Scheduler:
        return build_scheduler(case, context)

    def cache(context: CacheContext) -> PrefixCache:
        return build_cache(case, context)

    policies = [ChosenDrafts(lambda *_: most) if most else None for _ in range(2)]
    executor, host_bytes = real_executor(settings, clock, oracle(dict(known))), case["host_bytes"]
    real = assemble(executor, clock, limits, scheduler, cache, policies[0], host_bytes)
    tokens = KnownTokens({request.seed: known[request.request_id] for request in requests}, num_right)
    simulated = build_twin(
        real.engine.facts,
        limits,
        tokens,
        scheduler,
        cache=cache,
        draft_policy=policies[1],
        costs=STEP_1S,
        host_memory_bytes=host_bytes,
    )
    return real, simulated


def test_cases_hold_every_pair_of_options_and_are_few() -> None:
    for first, second in itertools.combinations(AXES, 2):
        pairs = {(case[first], case[second]) for case in CASES}
        assert pairs == set(itertools.product(AXES[first], AXES[second]))
    assert len(CASES) <= 60


@pytest.mark.parametrize("case", CASES, ids=["-".join(map(str, case.values())) for case in CASES])
def test_policies_decide_alike_on_a_real_model_and_simulated(
    case: dict[str, Any], known_outputs: dict[str, list[int]]
) -> None:
    requests = mixed_requests()
    real, simulated = twins(case, requests, known_outputs)
    copies = [fresh(request) for request in requests]
    outputs = run_all(real, requests, ABORTS)
    assert outputs == run_all(simulated, copies, ABORTS)
    for name, tokens in outputs.items():
        assert tokens == known_outputs[name][: len(tokens)]
    assert decisions(simulated.executor.plans) == decisions(real.executor.plans)
    assert simulated.clock.now() == real.clock.now()
    for name in SAME:
        assert getattr(simulated.engine.stats, name) == getattr(real.engine.stats, name), name
    if case["admission"] == "optimistic" and case["eviction"] != "contiguous":
        assert real.engine.stats.num_preemptions > 0
    assert (real.engine.stats.num_accepted_tokens > 0) == (case["num_drafts"] > 0)
