"""Engine with victims moved to host memory: nothing is computed twice, nothing is lost, whatever happens meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from tokenloom.batch import PreemptMode
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.interfaces.scheduler import Grant, Scheduler, SchedulerContext, Shortfall
from tokenloom.request import FinishReason, RequestStatus
from tokenloom.scheduling.preemption_cost import PreemptionCost
from tokenloom.testing.desk import Desk
from tokenloom.testing.engine_harness import ChosenDrafts, EngineHarness, PreemptAt, build_fcfs, oracle_drafts
from tokenloom.testing.stub_model import full_group

BLOCK = 4
LAYOUTS: dict[str, tuple[KVGroupSpec, ...]] = {
    "full": (full_group(),),
    "window": (full_group(0, window=6),),
    "hybrid": (full_group(), full_group(1, window=5)),
    "pools": (full_group(), full_group(1, window=9, pool_id=1)),
    "drafter": (full_group(), full_group(1, lookahead=2, is_drafter=True)),
}
PLENTY = 10**9


def pools_of(groups: Sequence[KVGroupSpec], num_blocks: int) -> tuple[int, ...]:
    pool_ids = [group.pool_id for group in groups]
    return tuple(1 + (num_blocks - 1) * pool_ids.count(pool_id) for pool_id in sorted(set(pool_ids)))


def swap_victim_at(positions: list[int]) -> Callable[[SchedulerContext], Scheduler]:
    return lambda context: PreemptAt(build_fcfs(context), {"victim": positions}, PreemptMode.SWAP)


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("cache", ["hash", "radix", "none", "contiguous"])
@pytest.mark.parametrize("num_drafts", [0, 3])
def test_swap_at_every_output_position_computes_nothing_twice(layout: str, cache: str, num_drafts: int) -> None:
    groups = LAYOUTS[layout]
    for position in range(2 * BLOCK + 2):
        harness = EngineHarness(
            num_blocks=pools_of(groups, 40),
            block_size=BLOCK,
            groups=groups,
            cache=cache,
            budget=16,
            max_model_len=64,
            draft_policy=ChosenDrafts(lambda *_: num_drafts) if num_drafts else None,
            drafts=(lambda model: oracle_drafts(model, lambda _, n: n % 4)) if num_drafts else None,
            scheduler=swap_victim_at([position]),
            host_memory_bytes=PLENTY,
        )
        victim = harness.request("victim", range(BLOCK + 1), 3 * BLOCK)
        harness.run(victim, harness.request("companion", range(50, 53), 9 * BLOCK))
        harness.check_truth()
        assert (victim.num_preemptions, victim.num_recomputed_tokens) == (1, 0)
        assert (harness.engine.stats.num_swaps, harness.engine.stats.num_refused_swaps) == (1, 0)
        assert harness.kv.host.used_bytes == 0
        assert harness.executor.memory.host == {}


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("mode", ["swap", "cheaper"])
@pytest.mark.parametrize("seed", range(12))
def test_pressure_under_swap_loses_nothing_and_storms_nobody(layout: str, mode: str, seed: int) -> None:
    rng = random.Random(f"{layout} {mode} {seed}")
    groups = LAYOUTS[layout]
    harness = EngineHarness(
        num_blocks=pools_of(groups, rng.randrange(9, 16)),
        block_size=BLOCK,
        groups=groups,
        cache=rng.choice(["hash", "radix", "none"]),
        budget=rng.choice([8, 64]),
        vocab_size=rng.choice([4, 50_000]),
        preempt_mode=mode,  # type: ignore[arg-type]
        host_memory_bytes=rng.choice([PLENTY, 1_000]),
    )
    aborted: set[str] = set()
    for i in range(10):
        harness.add(harness.request(f"r{i}", rng.choices(range(3), k=rng.randrange(1, 12)), rng.randrange(1, 20)))
        before = harness.engine.stats.num_preemptions
        harness.step()
        assert harness.engine.stats.num_preemptions - before <= 2
        if rng.random() < 0.2:
            chosen = rng.choice(sorted(harness.requests))
            output = harness.engine.abort(chosen)
            if output is not None:
                aborted.add(chosen)
        if rng.random() < 0.2:
            harness.executor.faults.lost_exports = set(harness.requests)
    harness.run()
    harness.check_truth(but=aborted)
    assert harness.kv.host.used_bytes == 0


def test_victim_waits_as_swapped_and_its_blocks_are_in_transfer_until_the_step_lands() -> None:
    desk = Desk((9,), host_memory_bytes=PLENTY)
    victim, other = desk.run("victim", range(18), 17), desk.run("other", range(50, 61), 11)
    ledger = desk.ledger()
    assert ledger.spare_blocks == 0
    assert ledger.preempt(victim, PreemptMode.SWAP) == 0, "nothing is free yet"
    newcomer = desk.wait("new", range(70, 80))
    again = desk.ledger()
    again.preempt(victim, PreemptMode.SWAP)
    assert again.reserve(newcomer, 10) == Shortfall("blocks", 3, pending=5)
    desk.commit(again.plan())
    assert desk.kv.usage() == {"null": 1, "free": 0, "active": 3, "cached": 0, "in_transfer": 5}
    assert victim.status is RequestStatus.SWAPPED
    desk.land()
    assert desk.kv.usage() == {"null": 1, "free": 1, "active": 3, "cached": 4, "in_transfer": 0}
    assert other.status is RequestStatus.RUNNING


def test_only_what_the_index_lost_comes_back() -> None:
    """Of five blocks four stay cached; two of them are evicted; those and the last, unfinished one are imported."""
    desk = Desk((9,), host_memory_bytes=PLENTY)
    victim = desk.run("victim", range(18), 17)
    ledger = desk.ledger()
    ledger.preempt(victim, PreemptMode.SWAP)
    desk.commit(ledger.plan())
    desk.land()
    filler = desk.run("filler", range(100, 122), 21)
    desk.leave(filler)
    match = desk.kv.match(victim)
    assert match.num_tokens == 17
    assert [len(ids) for ids in match.imports] == [3]
    ledger = desk.ledger()
    assert (ledger.cached_tokens(victim), ledger.need(victim)) == (17, 1)
    grant = ledger.reserve(victim, 1)
    assert grant == Grant("victim", 1, 3, 17)
    before = ledger.spare_blocks
    desk.commit(ledger.plan())
    assert desk.kv.pools[0].num_available == before
    moves = desk.kv.host.take_transfers().imports
    assert [(move.sources, len(move.block_ids[0])) for move in moves] == [(((2, 3, 4),), 3)]


def test_pinned_blocks_of_a_swapped_victim_stay_with_who_pinned_them() -> None:
    for order in ("pin first", "preempt first"):
        desk = Desk((9,), host_memory_bytes=PLENTY)
        victim = desk.run("victim", range(9))
        newcomer = desk.wait("new", range(9))
        ledger = desk.ledger()
        if order == "pin first":
            ledger.reserve(newcomer, 1)
            ledger.preempt(victim, PreemptMode.SWAP)
        else:
            ledger.preempt(victim, PreemptMode.SWAP)
            ledger.reserve(newcomer, 1)
        assert ledger.spare_blocks == 5
        assert ledger.reserve(desk.wait(f"late {order}", range(70, 100)), 30) == Shortfall("blocks", 3, 0)
        desk.commit(ledger.plan())
        assert desk.kv.pools[0].num_available == 5
        assert desk.kv.usage()["in_transfer"] == 0


def test_swap_without_room_becomes_a_recompute_that_is_counted() -> None:
    harness = EngineHarness(scheduler=swap_victim_at([4]), cache="none", host_memory_bytes=100)
    harness.run(harness.request("victim", range(9), 12), harness.request("companion", [50], 20))
    harness.check_truth()
    stats = harness.engine.stats
    assert (stats.num_preemptions, stats.num_swaps, stats.num_refused_swaps) == (1, 0, 1)
    assert stats.num_recomputed_tokens > 0


def test_lost_export_is_computed_again_and_counted() -> None:
    harness = EngineHarness(scheduler=swap_victim_at([4]), cache="none", host_memory_bytes=PLENTY)
    harness.executor.faults.lost_exports = {"victim"}
    victim = harness.request("victim", range(9), 12)
    harness.run(victim, harness.request("companion", [50], 20))
    harness.check_truth()
    assert (harness.engine.stats.num_swaps, harness.engine.stats.num_lost_swaps) == (1, 1)
    assert victim.num_recomputed_tokens == 12
    assert harness.executor.memory.host == {}


@pytest.mark.parametrize("event", ["abort", "overtaken"])
def test_host_memory_is_given_back_when_it_is_not_needed_any_more(event: str) -> None:
    harness = EngineHarness(scheduler=swap_victim_at([2]), host_memory_bytes=PLENTY, num_blocks=(20,))
    victim = harness.request("victim", range(9), 6)
    harness.add(victim, harness.request("companion", [50], 30))
    while victim.status is not RequestStatus.SWAPPED:
        harness.step()
    if event == "abort":
        output = harness.engine.abort("victim")
        assert output is not None
        assert output.finish_reason is FinishReason.ABORT
    harness.run()
    harness.check_truth(but={"victim"} if event == "abort" else set())
    assert harness.kv.host.used_bytes == 0
    assert harness.executor.memory.host == {}


def test_step_may_do_nothing_but_move_a_victim_away() -> None:
    """The only running request gives itself up; its blocks are free when the step has landed."""
    harness = EngineHarness(scheduler=swap_victim_at([3]), host_memory_bytes=PLENTY)
    victim = harness.request("victim", range(9), 6)
    harness.run(victim)
    harness.check_truth()
    empty = [plan for plan in harness.executor.plans if not plan.rows]
    assert len(empty) == 1
    assert victim.num_recomputed_tokens == 0


def test_cheaper_learns_what_costs_less() -> None:
    """Moving is tried once; then it is chosen as long as it is cheap, and not when it has become dear."""
    for transfer_s, expected in ((1e-6, PreemptMode.SWAP), (10.0, PreemptMode.RECOMPUTE)):
        cost = PreemptionCost()
        assert cost.is_swap_cheaper(10, 1_000), "nothing was moved yet"
        for tokens in (1, 5, 9):
            cost.observe(tokens, 0.5 + 0.01 * tokens, 0, 0.0)
        cost.observe(4, 0.54 + transfer_s, 1_000, transfer_s)
        assert cost.per_token_s == pytest.approx(0.01)
        assert cost.per_byte_s == pytest.approx(transfer_s / 1_000)
        assert cost.is_swap_cheaper(10, 1_000) == (expected is PreemptMode.SWAP)


def test_refused_where_there_is_no_host_memory() -> None:
    desk = Desk()
    with pytest.raises(ValueError, match="swap is not supported here"):
        desk.ledger().preempt(desk.run("a", range(9)), PreemptMode.SWAP)
