"""Cache contiguous: each request holds one run of neighbouring blocks from its start to its end."""

from __future__ import annotations

import random
from typing import final

import pytest

from tokenloom.batch import SchedulePlan, StepPlan
from tokenloom.errors import PluginContractError, RequestError
from tokenloom.interfaces.cache import CacheContext, PrefixCache
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerView, Shortfall
from tokenloom.interfaces.scheduler_events import SchedulerEvent
from tokenloom.plugins import default_registry
from tokenloom.testing.desk import Desk
from tokenloom.testing.engine_harness import (
    ChosenDrafts,
    EngineHarness,
    build_fcfs,
    build_prefix_cache,
    oracle_drafts,
)
from tokenloom.testing.stub_model import full_group
from tokenloom.testing.suite import build_choice


def by_request(context: CacheContext) -> PrefixCache:
    info = default_registry().get("cache", "contiguous").info
    cache = build_choice(info, {"reserve": "max_tokens"}).build(context)
    assert isinstance(cache, PrefixCache)
    return cache


@final
class PreemptSome(Scheduler):
    """Preempts a running request now and then, never the last one."""

    def __init__(self, inner: Scheduler, seed: int) -> None:
        self._inner = inner
        self._seed = seed

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        rng = random.Random(f"{self._seed} {view.step_id}")
        for request in view.running[1:]:
            if rng.random() < 0.3:
                ledger.preempt(request)
        return self._inner.schedule(view, ledger)

    def observe(self, event: SchedulerEvent) -> None:
        self._inner.observe(event)


def check_tables(plans: list[StepPlan], num_blocks: int | None = None) -> None:
    """Every table is one run of ids, and no step changes one."""
    for plan in plans:
        for row in plan.rows:
            for update in row.block_updates:
                ids = update.new_block_ids
                assert ids == (tuple(range(ids[0], ids[0] + len(ids))) if row.new is not None else ())
                assert update.num_null_blocks == 0, "a window's blocks stay in their run"
                assert num_blocks is None or row.new is None or len(ids) == num_blocks


def test_reservation_is_one_run_of_the_longest_sequence() -> None:
    cache = build_prefix_cache("contiguous", CacheContext(4, 100, 30))
    request = Desk((9,)).wait("a", range(5))
    reservation = cache.reservation(request)
    assert (reservation.num_blocks, reservation.contiguous) == (8, True)


@pytest.mark.parametrize(
    "groups", [(full_group(),), (full_group(), full_group(1, window=6)), (full_group(), full_group(1, pool_id=1))]
)
def test_every_request_gets_a_run_of_the_longest_sequence(groups: tuple[object, ...]) -> None:
    pools = (33, 33) if groups[-1].pool_id else (32 * len(groups) + 1,)  # type: ignore[attr-defined]
    harness = EngineHarness(cache="contiguous", num_blocks=pools, groups=groups, max_model_len=32)  # type: ignore[arg-type]
    harness.run(*[harness.request(f"r{i}", range(20 * i, 20 * i + 3 + i), 12) for i in range(9)])
    harness.check_truth()
    check_tables(harness.executor.plans, num_blocks=8)
    assert max(len(plan.rows) for plan in harness.executor.plans) == 4, "four runs of eight blocks"


def test_fragmentation_is_reported() -> None:
    harness = EngineHarness(cache="contiguous", num_blocks=(33,), max_model_len=32)
    harness.add(harness.request("a", range(5), 8), harness.request("b", range(20, 24), 20))
    harness.step()
    report = harness.engine.kv_fragmentation()
    assert (report.num_slots, report.held_slots, report.used_slots) == (128, 64, 9)
    assert (report.internal, report.used_share) == (1 - 9 / 64, 9 / 128)
    assert (report.num_free_blocks, report.largest_free_run, report.external) == (16, 16, 0.0)
    harness.engine.abort("a")
    report = harness.engine.kv_fragmentation()
    assert (report.num_free_blocks, report.largest_free_run) == (24, 16)
    assert report.external == pytest.approx(1 / 3)


def test_paged_memory_holds_what_it_uses_but_for_the_last_block() -> None:
    harness = EngineHarness(cache="hash", num_blocks=(33,), max_model_len=32)
    prompt = list(range(8))
    harness.run(harness.request("first", prompt, 1))
    harness.add(harness.request("a", [*prompt, 9], 8), harness.request("b", [*prompt, 10], 8))
    harness.step()
    report = harness.engine.kv_fragmentation()
    assert (report.held_slots, report.used_slots) == (16, 10), "two shared blocks, and one token in one of each"


def test_request_waits_for_a_run_though_enough_blocks_are_free() -> None:
    """Runs of 2, 4 and 2 blocks fill the pool; the outer ones leave 4 free blocks, but no run of 3."""
    harness = EngineHarness(cache=by_request, num_blocks=(9,), budget=32)
    harness.add(
        harness.request("left", range(2), 4),
        harness.request("middle", range(20, 22), 14),
        harness.request("right", range(40, 42), 4),
    )
    harness.step()
    late = harness.request("late", range(60, 62), 11)
    harness.add(late)
    while "middle" not in harness.last or harness.last["middle"].finish_reason is None:
        assert late.status == "waiting"
        harness.step()
    harness.run()
    harness.check_truth()
    check_tables(harness.executor.plans)


def test_shortfall_names_what_the_longest_run_lacks_and_a_victims_run_counts() -> None:
    desk = Desk((17,), 32, cache="contiguous")
    first, second = desk.wait("a", range(3)), desk.wait("b", range(3))
    third = desk.wait("c", range(3))
    ledger = desk.ledger()
    start = ledger.savepoint()
    for _ in range(2):
        ledger.reserve(first, 3)
        ledger.reserve(second, 3)
        assert ledger.reserve(third, 3) == Shortfall("blocks", 8)
        assert ledger.placements == {"a": (1,), "b": (9,)}
        ledger.rollback(start)
    assert ledger.placements == {}
    desk.admit(first)
    desk.kv.place(first, (1,))
    ledger = desk.ledger()
    ledger.reserve(second, 3)
    assert ledger.reserve(third, 3) == Shortfall("blocks", 8)
    assert ledger.preempt(first) == 8
    ledger.reserve(third, 3)
    assert ledger.placements == {"b": (9,), "c": (1,)}


@pytest.mark.parametrize("num_drafts", [0, 3])
@pytest.mark.parametrize("seed", range(6))
def test_random_traffic_on_runs_of_many_lengths(seed: int, num_drafts: int) -> None:
    rng = random.Random(seed)
    harness = EngineHarness(
        cache=by_request,
        num_blocks=(20,),
        budget=16,
        max_num_seqs=5,
        max_model_len=60,
        scheduler=lambda context: PreemptSome(build_fcfs(context), seed),
        draft_policy=ChosenDrafts(lambda *_: num_drafts) if num_drafts else None,
        drafts=(lambda model: oracle_drafts(model, lambda _, n: n % 4)) if num_drafts else None,
    )
    aborted: set[str] = set()
    for i in range(12):
        harness.add(harness.request(f"r{i}", range(50 * i, 50 * i + rng.randrange(1, 20)), rng.randrange(1, 20)))
        harness.step()
        if rng.random() < 0.15 and harness.engine.abort(f"r{i}") is not None:
            aborted.add(f"r{i}")
    harness.run()
    harness.check_truth(but=aborted)
    check_tables(harness.executor.plans)
    assert harness.engine.stats.num_preemptions > 0


def test_pool_below_one_run_refuses_requests_by_name() -> None:
    harness = EngineHarness(cache="contiguous", num_blocks=(5,), max_model_len=32)
    with pytest.raises(RequestError, match="reserves memory for 32 tokens"):
        harness.add(harness.request("a", range(3), 4))


def test_cache_that_reserves_runs_and_stores_prefixes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenloom_cache.contiguous.ContiguousCache.stores_prefixes", True)
    with pytest.raises(PluginContractError, match="stores no prefixes"):
        EngineHarness(cache="contiguous")
