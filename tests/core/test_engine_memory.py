"""Engine on tiny pools: chunks, preemption at every position, prefix hits, and random traffic against the truth."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from tokenloom.errors import RequestError
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.interfaces.scheduler import Scheduler, SchedulerContext
from tokenloom.request import FinishReason
from tokenloom.testing.engine_harness import ChosenDrafts, EngineHarness, PreemptAt, build_fcfs, oracle_drafts
from tokenloom.testing.stub_executor import Drafts
from tokenloom.testing.stub_model import StubModel, full_group

BLOCK = 4
LAYOUTS: dict[str, tuple[KVGroupSpec, ...]] = {
    "full": (full_group(),),
    "window": (full_group(0, window=6),),
    "hybrid": (full_group(), full_group(1, window=5)),
    "pools": (full_group(), full_group(1, window=9, pool_id=1)),
    "drafter": (full_group(), full_group(1, lookahead=1, is_drafter=True)),
}


def pools_of(groups: Sequence[KVGroupSpec], num_blocks: int) -> tuple[int, ...]:
    """The same room for tokens, whatever the layout."""
    pool_ids = [group.pool_id for group in groups]
    return tuple(1 + (num_blocks - 1) * pool_ids.count(pool_id) for pool_id in sorted(set(pool_ids)))


# ---- chunked prefill ----


@pytest.mark.parametrize("budget", [1, 7, 64])
@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 64, 65, 100])
def test_chunks_change_no_token(budget: int, length: int) -> None:
    harness = EngineHarness(budget=budget, max_model_len=128)
    harness.run(harness.request("a", range(length), 6), harness.request("b", range(1_000, 1_000 + length), 6))
    harness.check_truth()
    assert max(plan.num_tokens for plan in harness.executor.plans) <= budget
    first_chunks = [row.num_scheduled_tokens for plan in harness.executor.plans for row in plan.rows if row.new]
    assert first_chunks[0] == min(length, budget)


@pytest.mark.parametrize("length", [64, 65, 128, 129])
def test_prompt_longer_than_the_budget_ends_in_as_many_steps_as_it_takes(length: int) -> None:
    harness = EngineHarness(budget=64, max_model_len=256, num_blocks=(100,))
    harness.run(harness.request("a", range(length), 1))
    harness.check_truth()
    assert len(harness.executor.plans) == -(-length // 64)


def test_tail_of_a_prompt_shares_its_step_with_the_next_prompt() -> None:
    """Two prompts of budget + 1: the second step holds 1 + (budget - 1) tokens."""
    harness = EngineHarness(budget=16)
    harness.run(harness.request("a", range(17), 1), harness.request("b", range(100, 117), 1))
    counts = [[row.num_scheduled_tokens for row in plan.rows] for plan in harness.executor.plans]
    assert counts == [[16], [1, 15], [2]]
    harness.check_truth()


# ---- preemption ----


def preempt_victim_at(positions: list[int]) -> Callable[[SchedulerContext], Scheduler]:
    return lambda context: PreemptAt(build_fcfs(context), {"victim": positions})


def spec_parts(num_drafts: int) -> tuple[ChosenDrafts | None, Callable[[StubModel], Drafts] | None]:
    if not num_drafts:
        return None, None
    policy = ChosenDrafts(lambda request, _: 0 if request.request_id == "companion" else num_drafts)
    return policy, lambda model: oracle_drafts(model, lambda _, length: length % (num_drafts + 1))


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("cache", ["hash", "none"])
@pytest.mark.parametrize("num_drafts", [0, 3])
def test_preemption_at_every_output_position_changes_no_token(layout: str, cache: str, num_drafts: int) -> None:
    groups = LAYOUTS[layout]
    for positions in (*([position] for position in range(2 * BLOCK + 2)), list(range(2 * BLOCK + 2))):
        policy, drafts = spec_parts(num_drafts)
        harness = EngineHarness(
            num_blocks=pools_of(groups, 32),
            block_size=BLOCK,
            groups=groups,
            cache=cache,
            budget=16,
            draft_policy=policy,
            drafts=drafts,
            scheduler=preempt_victim_at(positions),
        )
        victim = harness.request("victim", range(BLOCK + 1), 3 * BLOCK)
        harness.run(victim, harness.request("companion", range(50, 53), 12 * BLOCK))
        harness.check_truth()
        assert victim.num_preemptions >= (1 if len(positions) == 1 or num_drafts else len(positions))
        if cache == "none":
            assert victim.num_recomputed_tokens > 0


@pytest.mark.parametrize("num_usable", range(2, 8))
@pytest.mark.parametrize("num_drafts", [0, 4])
def test_request_that_outgrows_the_pool_ends_with_length(num_usable: int, num_drafts: int) -> None:
    """The last token's KV is not stored, so it may be one more than the pool holds."""
    for layout, groups in LAYOUTS.items():
        policy, drafts = spec_parts(num_drafts)
        harness = EngineHarness(
            num_blocks=pools_of(groups, num_usable + 1),
            block_size=BLOCK,
            groups=groups,
            draft_policy=policy,
            drafts=drafts,
        )
        prompts = {"a": [1, 2, 3], "b": [7] * (num_usable * BLOCK), "c": [9]}
        harness.run(*[harness.request(name, prompt, 100) for name, prompt in prompts.items()])
        harness.check_truth()
        for name, prompt in prompts.items():
            assert harness.reason(name) is FinishReason.LENGTH
            assert len(prompt) + len(harness.tokens[name]) == num_usable * BLOCK + 1, layout


def test_growing_requests_on_half_the_memory_never_storm() -> None:
    """Eight that grow in step, room for four: each step preempts a few at most, and every step computes something."""
    harness = EngineHarness(num_blocks=(4 * 6 + 1,), budget=64)
    harness.add(*[harness.request(f"r{i}", range(100 * i, 100 * i + 8), 16) for i in range(8)])
    while harness.engine.has_work():
        before = harness.engine.stats.num_preemptions
        harness.step()
        assert harness.engine.stats.num_preemptions - before <= 2
        assert harness.executor.plans[-1].num_tokens > 0
    harness.check_idle()
    harness.check_truth()
    assert harness.engine.stats.num_preemptions > 0


def test_first_in_is_never_preempted_by_those_behind_it() -> None:
    harness = EngineHarness(num_blocks=(7,))
    harness.run(*[harness.request(f"r{i}", range(100 * i, 100 * i + 6), 12) for i in range(5)])
    harness.check_truth()
    assert harness.requests["r0"].num_preemptions == 0
    ends = [harness.last[f"r{i}"].times.finish_s for i in range(5)]
    assert ends == sorted(ends, key=lambda end: end or 0.0), "first come, first served"


def test_resumed_request_finds_its_own_blocks_again() -> None:
    harness = EngineHarness(num_blocks=(32,), scheduler=preempt_victim_at([6]))
    victim = harness.request("victim", range(6), 12)
    harness.run(victim, harness.request("companion", [50], 20))
    harness.check_truth()
    assert victim.num_preemptions == 1
    assert victim.num_recomputed_tokens == 3, "11 tokens were computed, 8 of them in full blocks"
    assert harness.last["victim"].num_cached_tokens == 0


# ---- sharing ----


def test_prompts_that_share_a_prefix_share_its_blocks() -> None:
    harness = EngineHarness(num_blocks=(16,))
    prefix = list(range(17))
    harness.run(harness.request("first", prefix, 2))
    harness.run(*[harness.request(f"r{i}", [*prefix, 100 + i], 6) for i in range(4)])
    harness.check_truth()
    assert [harness.last[f"r{i}"].num_cached_tokens for i in range(4)] == [16] * 4
    assert harness.engine.stats.num_preemptions == 0, "4 shared blocks and 2 for each fit 15, 6 for each would not"


def test_prompt_chunk_is_found_by_others_before_its_request_ends() -> None:
    harness = EngineHarness(budget=8)
    harness.add(harness.request("a", range(33), 4))
    harness.step()
    harness.step()
    harness.run(harness.request("b", [*range(16), 99], 4))
    assert harness.last["b"].num_cached_tokens == 16
    harness.check_truth()


# ---- random traffic ----


def random_harness(rng: random.Random) -> EngineHarness:
    layout = rng.choice(sorted(LAYOUTS))
    num_drafts = rng.choice([0, 0, 1, 3])
    policy, drafts = spec_parts(num_drafts)
    if policy is not None and rng.random() < 0.5:
        policy = ChosenDrafts(lambda request, _: (request.num_tokens * 7 + len(request.request_id)) % (num_drafts + 1))
    max_chunk = rng.choice([None, None, 3])
    block_size = rng.choice([1, 2, 4])

    def scheduler(context: SchedulerContext) -> Scheduler:
        return build_fcfs(context, max_chunk)

    return EngineHarness(
        num_blocks=pools_of(LAYOUTS[layout], rng.randrange(3, 14)),
        block_size=block_size,
        groups=LAYOUTS[layout],
        cache=rng.choice(["hash", "hash", "none"]),
        max_num_seqs=rng.randrange(1, 7),
        budget=rng.randrange(1, 20),
        max_model_len=rng.choice([12, 30]),
        vocab_size=rng.choice([3, 50_000]),
        scheduler=scheduler,
        draft_policy=policy,
        drafts=drafts,
    )


def random_prompt(rng: random.Random, vocab_size: int) -> list[int]:
    """Often one of few prefixes, so that blocks are shared."""
    prefix = [rng.randrange(2) % vocab_size] * rng.choice([0, 0, 4, 8, 9])
    return prefix + rng.choices(range(min(3, vocab_size)), k=rng.randrange(1, 8))


@pytest.mark.parametrize("seed", range(60))
def test_random_traffic_with_random_aborts_ends_and_tells_the_truth(seed: int) -> None:
    """1,500 requests, some of them refused: everything ends, no block leaks, each yields what it yields alone."""
    rng = random.Random(seed)
    harness = random_harness(rng)
    aborted: set[str] = set()
    num_refused = 0
    for index in range(25):
        prompt = random_prompt(rng, harness.model.vocab_size)
        stop = rng.choices(range(harness.model.vocab_size), k=rng.choice([0, 0, 1]))
        request = harness.request(
            f"r{index}", prompt, rng.randrange(1, 14), stop=stop, cache_salt=rng.choice(["", "", "", "x"])
        )
        try:
            harness.add(request)
        except RequestError:
            num_refused += 1
            assert len(prompt) > min(harness.kv.max_sequence_tokens, harness.engine.limits.max_model_len - 1)
            continue
        for _ in range(rng.choice([0, 0, 1, 3])):
            harness.step()
        if rng.random() < 0.2:
            victim = f"r{rng.randrange(index + 2)}"
            if harness.engine.abort(victim) is not None:
                aborted.add(victim)
            assert harness.engine.abort(victim) is None
            harness.check_blocks()
    harness.run()
    assert len(harness.requests) + num_refused == 25
    harness.check_truth(but=aborted)
    for name in aborted:
        verdict = harness.model.verdict(harness.requests[name]).token_ids
        tokens = harness.tokens.get(name, [])
        assert tokens == verdict[: len(tokens)], f"{name} strayed before its abort"
    assert not harness.kv._keys
