"""Equal arrivals, tokens, acceptance and step times: equal decisions, on a stub, on a tiny real model and simulated."""

from __future__ import annotations

import random
from typing import Literal

import pytest

from tests.core.executors.simulated_twin import KnownTokens, Timed, assemble, build_twin, decisions, fresh, run_all
from tokenloom.clock import VirtualClock
from tokenloom.executors.step_time import StepCosts
from tokenloom.interfaces.scheduler import Scheduler, SchedulerContext
from tokenloom.interfaces.spec_decode import DraftBatch, Drafter, DrafterNeeds, Proposal
from tokenloom.plugins import default_registry
from tokenloom.request import Request
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.engine_harness import ChosenDrafts, EngineHarness, build_fcfs, oracle_drafts
from tokenloom.testing.stub_executor import StubExecutor
from tokenloom.testing.stub_model import StubModel, full_group, stub_request
from tokenloom.testing.suite import build_choice
from tokenloom.testing.tiny_decoder import TinyDecoder
from tokenloom.testing.tiny_engine import MAX_MODEL_LEN, TinyEngine, TinySettings

STEP_1S = StepCosts(step_s=1.0, prefill_token_s=0.0, decode_row_s=0.0, kv_byte_s=0.0)


def prompts(seed: int, count: int) -> list[list[int]]:
    """Prompts of 1..40 tokens, many of which begin alike."""
    draw = random.Random(seed)
    heads = [[draw.randrange(60) for _ in range(16)] for _ in range(3)]
    return [
        draw.choice(heads)[: draw.randrange(17)] + [draw.randrange(60) for _ in range(draw.randrange(1, 24))]
        for _ in range(count)
    ]


def num_right(seed: int, position: int) -> int:
    return (seed * 7 + position * 3) % 5


@pytest.mark.parametrize("cache", ["hash", "none"])
@pytest.mark.parametrize("num_blocks", [20, 200], ids=["pressed", "ample"])
@pytest.mark.parametrize("num_drafts", [0, 3])
def test_decisions_equal_those_on_the_stub(cache: str, num_blocks: int, num_drafts: int) -> None:
    rights: dict[str, int] = {}
    harness = EngineHarness(
        num_blocks=(num_blocks,),
        cache=cache,
        max_num_seqs=4,
        budget=24,
        draft_policy=ChosenDrafts(lambda request, _: num_drafts) if num_drafts else None,
        drafts=lambda model: oracle_drafts(model, lambda name, length: num_right(int(name), length - rights[name])),
    )
    requests: list[Request] = []
    for index, prompt in enumerate(prompts(1, 14)):
        request = harness.request(str(index), prompt, 3 + index)
        request.seed = index
        rights[request.request_id] = len(prompt)
        requests.append(request)
    copies = [fresh(request) for request in requests]
    harness.run(*requests)
    harness.check_truth()
    twin = build_twin(
        harness.engine.facts,
        SchedulerContext(4, 24, 128, 4, num_blocks - 1),
        KnownTokens({r.seed: harness.tokens[r.request_id] for r in requests}, num_right),
        build_fcfs,
        cache=cache,
        draft_policy=ChosenDrafts(lambda request, _: num_drafts) if num_drafts else None,
        costs=STEP_1S,
    )
    assert run_all(twin, copies) == harness.tokens
    assert decisions(twin.executor.plans) == decisions(harness.executor.plans)
    assert twin.clock.now() == harness.clock.now() == len(twin.executor.plans)
    engine = twin.engine
    assert (engine.stats.num_preemptions > 0) == (num_blocks == 20)
    assert engine.stats.num_preemptions == harness.engine.stats.num_preemptions
    assert engine.stats.num_accepted_tokens == harness.engine.stats.num_accepted_tokens
    assert engine.stats.num_recomputed_tokens == harness.engine.stats.num_recomputed_tokens


class _NoDrafts(Drafter):
    def needs(self) -> DrafterNeeds:
        return DrafterNeeds()

    def propose(self, batch: DraftBatch) -> list[Proposal]:
        return [Proposal() for _ in batch.request_ids]

    def forget(self, request_ids: object) -> None:
        """Keeps nothing."""


@pytest.mark.parametrize("num_blocks", [24, 400], ids=["pressed", "ample"])
def test_decisions_equal_those_of_the_real_model_runner(num_blocks: int) -> None:
    settings = TinySettings(num_blocks=num_blocks, budget=24, max_num_seqs=4)
    real = TinyEngine(TinyDecoder(), _NoDrafts(), settings=settings)
    requests = [
        real.add(str(index), prompt, SamplingParams(temperature=0.0, max_tokens=4 + index), seed=index)
        for index, prompt in enumerate(prompts(2, 10))
    ]
    copies = [fresh(request) for request in requests]
    outputs = real.run()
    twin = build_twin(
        real.engine.facts,
        SchedulerContext(4, 24, MAX_MODEL_LEN, 4, num_blocks - 1),
        KnownTokens({r.seed: outputs[r.request_id] for r in requests}, num_right),
        build_fcfs,
    )
    assert run_all(twin, copies) == outputs
    assert decisions(twin.executor.plans) == decisions(real.plans)
    assert (twin.engine.stats.num_preemptions > 0) == (num_blocks == 24)


def build_scheduler(name: str, context: SchedulerContext) -> Scheduler:
    scheduler = build_choice(default_registry().get("scheduler", name).info, {}).build(context)
    assert isinstance(scheduler, Scheduler)
    return scheduler


def mixed_requests() -> list[Request]:
    """Requests of several tenants, priorities and targets, that arrive one after the other."""
    draw = random.Random(7)
    return [
        stub_request(
            str(index),
            prompt,
            max_tokens=draw.randrange(1, 30),
            seed=index,
            arrival_time_s=index // 3 * 1.5,
            priority=draw.randrange(3),
            tenant=draw.choice("ab"),
            ttft_slo_s=draw.choice([None, 5.0, 20.0]),
            tpot_slo_s=draw.choice([None, 2.0]),
        )
        for index, prompt in enumerate(prompts(3, 24))
    ]


SCHEDULERS = [plugin.info.name for plugin in default_registry().plugins("scheduler") if plugin.package == "tokenloom"]


@pytest.mark.parametrize(
    ("cache", "mode", "num_blocks"),
    [("hash", "recompute", 24), ("radix", "swap", 24), ("none", "swap", 24), ("contiguous", "recompute", 80)],
    ids=["hash", "radix-swap", "none-swap", "contiguous"],
)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_scheduler_decides_alike_on_the_stub_and_simulated(
    scheduler: str, cache: str, mode: Literal["recompute", "swap"], num_blocks: int
) -> None:
    limits = SchedulerContext(6, 24, 128, 4, num_blocks - 1, mode)
    clock, model = VirtualClock(), StubModel()
    stub = StubExecutor(
        model,
        num_blocks=(num_blocks,),
        block_size=4,
        groups=(full_group(),),
        max_model_len=128,
        max_num_batched_tokens=24,
    )
    real = assemble(
        Timed(stub, clock), clock, limits, lambda context: build_scheduler(scheduler, context), cache, None, 2**30
    )
    requests, aborts = mixed_requests(), {"4": 6.0, "11": 9.0, "20": 12.0}
    known = {request.seed: model.verdict(request).token_ids for request in requests}
    simulated = build_twin(
        real.engine.facts,
        limits,
        KnownTokens(known, num_right),
        lambda context: build_scheduler(scheduler, context),
        cache=cache,
        costs=STEP_1S,
        host_memory_bytes=2**30,
    )
    copies = [fresh(request) for request in requests]
    assert run_all(real, requests, aborts) == run_all(simulated, copies, aborts)
    assert decisions(simulated.executor.plans) == decisions(real.executor.plans)
    assert simulated.clock.now() == real.clock.now()
    for name in ("num_preemptions", "num_swaps", "num_recomputed_tokens", "num_cached_tokens", "num_finished"):
        assert getattr(simulated.engine.stats, name) == getattr(real.engine.stats, name), name
    assert simulated.engine.stats.num_finished == len(requests)
