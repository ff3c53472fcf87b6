"""Everything that moves KV at once: shared prefixes, choices, swaps that get lost, kept blocks, aborts, tiny pools."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.interfaces.scheduler import Scheduler, SchedulerContext
from tokenloom.plugins import default_registry
from tokenloom.request import Request
from tokenloom.testing.engine_harness import ChosenDrafts, EngineHarness, oracle_drafts
from tokenloom.testing.stub_model import full_group
from tokenloom.testing.suite import build_choice

SCHEDULERS = ("fcfs", "priority", "sjf", "fair_share", "deadline", "prefix_affinity", "static_batch")
LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[KVGroupSpec, ...]]] = {
    "full": ((1,), (full_group(),)),
    "window": ((1,), (full_group(0, window=6),)),
    "hybrid": ((2,), (full_group(), full_group(1, window=5))),
    "pools": ((1, 1), (full_group(), full_group(1, window=9, pool_id=1))),
    "drafter": ((2,), (full_group(), full_group(1, lookahead=1, is_drafter=True))),
}


def random_harness(rng: random.Random) -> EngineHarness:
    shares, groups = LAYOUTS[rng.choice(sorted(LAYOUTS))]
    num_blocks, num_drafts = rng.randrange(9, 20), rng.choice([0, 0, 3])
    max_num_seqs, budget = rng.randrange(2, 7), rng.choice([40, 64])

    def build(context: SchedulerContext) -> Scheduler:
        limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": budget}
        info = default_registry().get("scheduler", rng.choice(SCHEDULERS)).info
        scheduler = build_choice(info, limits).build(context)
        assert isinstance(scheduler, Scheduler)
        return scheduler

    settings: dict[str, Any] = {
        "preempt_mode": rng.choice(["recompute", "swap", "swap", "cheaper"]),
        "partial_preemption": rng.random() < 0.5,
        "host_memory_bytes": rng.choice([10**9, 700]),
        "cache": rng.choice(["hash", "radix", "none"]),
    }
    return EngineHarness(
        num_blocks=tuple(1 + share * num_blocks for share in shares),
        groups=groups,
        max_num_seqs=max_num_seqs,
        budget=budget,
        max_model_len=rng.choice([30, 60]),
        vocab_size=rng.choice([12, 50_000]),
        scheduler=build,
        draft_policy=ChosenDrafts(lambda *_: num_drafts) if num_drafts else None,
        drafts=(lambda model: oracle_drafts(model, lambda _, n: n % 4)) if num_drafts else None,
        **settings,
    )


def arrivals(harness: EngineHarness, rng: random.Random, number: int) -> list[Request]:
    prompt = [*range(rng.choice([0, 4, 8, 11])), *rng.choices(range(3), k=rng.randrange(1, 9))]
    made = []
    for index in range(rng.choice([1, 1, 3])):
        request = harness.request(f"r{number}.{index}", prompt, rng.randrange(1, 16))
        request.choice_index, request.choice_set = index, f"r{number}"
        request.priority, request.tenant = rng.randrange(3), rng.choice("ab")
        made.append(request)
    return made


@pytest.mark.parametrize("seed", range(60))
def test_no_request_is_lost_and_no_token_is_wrong(seed: int) -> None:
    rng = random.Random(seed)
    harness = random_harness(rng)
    aborted: set[str] = set()
    for number in range(8):
        harness.add(*arrivals(harness, rng, number))
        for _ in range(rng.randrange(3)):
            harness.step()
        if rng.random() < 0.3:
            chosen = rng.choice(sorted(harness.requests))
            if harness.engine.abort(chosen) is not None:
                aborted.add(chosen)
        if rng.random() < 0.3:
            harness.executor.faults.lost_exports = set(rng.sample(sorted(harness.requests), 1))
    harness.run()
    harness.check_truth(but=aborted)
    assert harness.kv.host.used_bytes == 0
    assert not list(harness.kv.keepers)
    assert not harness.kv.siblings._holders
