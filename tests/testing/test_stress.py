"""The stress test: it finds what is planted, makes it small, and finds nothing in what is installed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

import pytest

from tests.testing.planted_scheduler import Bug, PlantedConfig
from tokenloom.interfaces.scheduler import SchedulerConfig
from tokenloom.plugins import default_registry
from tokenloom.testing.stress import StressReport, run_stress, shrink
from tokenloom.testing.stress_case import Combination, StressCase, all_combinations, draw_case, draw_combination
from tokenloom.testing.stress_coverage import Reach, find_gaps, reach_of
from tokenloom.testing.stress_run import StressCounts, run_case
from tokenloom.testing.stress_waits import wait_bounds
from tokenloom.testing.suite import build_choice

NUM_STEPS = 64_000
"""About twice as many as it takes to reach every combination, with one admission policy and one mode each."""


@pytest.mark.slow
def test_random_traffic_over_all_combinations_finds_nothing() -> None:
    report = StressReport(seed=1)
    run_stress(report, NUM_STEPS, max_failures=1)
    assert [f"{failure.case}: {failure.error} ({failure.arguments})" for failure in report.failures] == []
    total = report.total
    assert total.num_steps >= NUM_STEPS
    combinations, reached = (
        {replace(one, admission="", preempt_mode="swap") for one in group}
        for group in (all_combinations(), report.counts)
    )
    assert reached == combinations, f"{len(combinations - reached)} combinations were not reached"
    check_is_pressing(report)
    assert 0.3 < total.worst_wait <= 1.0, "nobody waits, or the bounds are far off"


def check_is_pressing(report: StressReport) -> None:
    """What the test is about did happen, with each plugin and with most combinations."""
    assert find_gaps(report.counts) == []
    for name in ("num_aborted", "num_lost_swaps", "num_refused_swaps", "num_cached_tokens"):
        assert getattr(report.total, name) > 0, f"{name} is 0: the traffic is too tame"
    possible = {one: counts for one, counts in report.counts.items() if one.can_preempt}
    for scheduler, victim in {(one.scheduler, one.victim) for one in possible}:
        rows = [n for one, n in possible.items() if (one.scheduler, one.victim) == (scheduler, victim)]
        assert sum(row.num_preemptions for row in rows), f"{scheduler} with {victim} never preempted"
        assert sum(row.num_swaps for row in rows), f"{scheduler} with {victim} never swapped"
    for scheduler, eviction in {(one.scheduler, one.eviction) for one in report.counts if one.eviction}:
        rows = [n for one, n in report.counts.items() if (one.scheduler, one.eviction) == (scheduler, eviction)]
        assert sum(row.num_evicted for row in rows), f"{scheduler} never evicted by {eviction}"
    kinds = ("scheduler", "victim", "cache", "eviction")
    can = {tuple(getattr(one, kind) for kind in kinds) for one in possible if one.cache != "contiguous"}
    did = {tuple(getattr(one, kind) for kind in kinds) for one, counts in possible.items() if counts.num_preemptions}
    assert len(did & can) > 0.75 * len(can), f"{len(did & can)} of {len(can)} combinations preempted"


def first_failure(bug: str, num_cases: int = 40) -> tuple[StressCase, Exception]:
    """The first case that shows a planted bug."""
    for number in range(num_cases):
        case = planted(draw_case(0, number), bug)
        try:
            run_case(case)
        except (Exception, AssertionError) as error:  # noqa: BLE001 - whatever it is, it was noticed
            return case, error
    raise AssertionError(f"{bug} was not noticed in {num_cases} cases")


def planted(case: StressCase, bug: str) -> StressCase:
    """A case with a broken plugin, which states the bound of fcfs."""
    limits = {name: dict(case.scheduler)[name] for name in ("max_num_seqs", "max_num_batched_tokens")}
    scheduler = PlantedConfig(bug=cast(Bug, bug), **limits)
    return replace(case, scheduler=scheduler, combination=replace(case.combination, scheduler="fcfs"))


@pytest.mark.parametrize("bug", ["last_come_first_served", "empty_plan", "one_token_over", "waits_for_the_impossible"])
def test_a_planted_bug_is_found(bug: str) -> None:
    case, error = first_failure(bug)
    kept = shrink(case, error, max_runs=30)
    assert 1 <= len(kept) < len(case.requests)
    with pytest.raises(type(error)):
        run_case(case, kept)


def test_a_case_follows_from_its_seed_and_number() -> None:
    assert draw_case(3, 17) == draw_case(3, 17)
    assert draw_case(3, 17) != draw_case(4, 17)
    assert run_case(draw_case(3, 17)) == run_case(draw_case(3, 17))


@pytest.mark.parametrize(
    ("scheduler", "field"),
    [("sjf", "max_wait_s"), ("deadline", "max_wait_s"), ("prefix_affinity", "max_wait_s"), ("priority", "ageing_s")],
)
def test_a_scheduler_that_states_no_wait_has_no_bound(scheduler: str, field: str) -> None:
    case = draw_case(0, 0)
    named = replace(case.combination, scheduler=scheduler)
    info = default_registry().get("scheduler", scheduler).info
    for value, has_bound in ((4.0, True), (None, False)):
        config = build_choice(info, {field: value}).config
        assert isinstance(config, SchedulerConfig)
        bounds = wait_bounds(replace(case, scheduler=config, combination=named), {"a": case.requests[0]})
        assert (bounds.keys() == {"a"}) == has_bound


def test_so_many_cases_as_combinations_have_each_of_them() -> None:
    combinations = all_combinations()
    drawn = [draw_combination(0, number) for number in range(len(combinations))]
    assert sorted(drawn) == combinations
    assert len({one.scheduler for one in combinations}) * 4 * 3 * 12 * 3 <= len(combinations)


def test_the_first_cases_are_even_and_mostly_optimistic() -> None:
    combinations = all_combinations()
    drawn = [draw_combination(0, number) for number in range(len(combinations) // 9)]
    rest = {replace(one, admission="", preempt_mode="swap") for one in drawn}
    assert len(rest) == len(drawn), "all but admission policies and modes"
    few = drawn[: len(drawn) // 4]
    assert len({(one.scheduler, one.cache, one.eviction) for one in few}) == len(few), "each scheduler, each cache"
    # 20,000 steps are more than 200 cases.
    assert pairs_in(drawn[:200]) == pairs_in(combinations)
    assert len(drawn) / 2 < sum(one.admission == "optimistic" for one in drawn) < len(drawn) * 3 / 4


def pairs_in(combinations: Iterable[Combination]) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    """Every two choices that meet."""
    return {pair for one in combinations for pair in itertools.combinations(one.names.items(), 2)}


def test_a_failing_case_is_kept_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(seed: int, number: int) -> StressCase:
        case = draw_case(seed, number)
        return planted(case, "empty_plan") if number == 0 else case

    monkeypatch.setattr("tokenloom.testing.stress.draw_case", draw)
    report = StressReport(seed=0)
    run_stress(report, 150)
    (failure,) = report.failures
    assert "empty" in failure.error or "progress" in failure.error
    assert failure.arguments == " ".join(["--seed 0 --case 0 --requests", *map(str, failure.kept)])
    assert len(failure.kept) < len(failure.case.requests)
    assert report.next_case > 1
    assert report.total.num_steps >= 150
    assert isinstance(report.total, StressCounts)


def calm(num_cases: int, **deeds: int) -> StressCounts:
    return StressCounts(num_cases=num_cases, num_steps=num_cases, **deeds)


LIVELY = {"num_preemptions": 9, "num_partial": 9, "num_swaps": 9, "num_evicted": 9, "num_aborted_preempted": 9}


def test_what_never_happened_is_named() -> None:
    tame = Combination("fcfs", "last_in", "optimistic", "hash", "lru", "cheaper")
    other = replace(tame, victim="most_blocks", eviction="fifo")
    counts = {tame: calm(40, **{**LIVELY, "num_preemptions": 0}), other: calm(40, **LIVELY)}
    assert find_gaps(counts) == [
        "scheduler.victim=last_in never preempted in 40 cases in which it could have",
        "cache.eviction=lru never preempted in 40 cases in which it could have",
        "scheduler=fcfs scheduler.victim=last_in scheduler.admission=optimistic scheduler.preempt_mode=cheaper never "
        "preempted in 40 cases in which it could have",
    ]
    assert [str(reach) for reach in reach_of(counts)[:2]] == ["1 of 2 preempted", "2 of 2 swapped"]


def test_few_cases_and_impossible_deeds_leave_no_gap() -> None:
    few = Combination("fcfs", "last_in", "optimistic", "hash", "lru", "swap")
    reserved = Combination("sjf", "most_blocks", "reserve_all", "none", "", "swap")
    counts = {
        few: calm(10),
        reserved: calm(500),
        replace(reserved, admission="optimistic", cache="contiguous"): calm(9),
    }
    assert find_gaps(counts) == []
    assert reach_of(counts)[0] == Reach("preempted", 0, 1)
    assert replace(reserved, scheduler="priority").can_preempt, "urgent requests displace others"
