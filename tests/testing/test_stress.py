"""The stress test: it finds what is planted, makes it small, and finds nothing in what is installed."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from tests.testing.planted_scheduler import Bug, PlantedConfig
from tokenloom.testing.stress import StressReport, run_stress, shrink
from tokenloom.testing.stress_case import StressCase, all_combinations, draw_case
from tokenloom.testing.stress_run import StressCounts, run_case

NUM_STEPS = 32_000
"""About as many as it takes to reach every combination, with one admission policy each."""


@pytest.mark.slow
def test_random_traffic_over_all_combinations_finds_nothing() -> None:
    report = StressReport(seed=1)
    run_stress(report, NUM_STEPS, max_failures=1)
    assert [f"{failure.case}: {failure.error} ({failure.arguments})" for failure in report.failures] == []
    total = report.total
    assert total.num_steps >= NUM_STEPS
    combinations, reached = (
        {replace(one, admission="") for one in group} for group in (all_combinations(), report.counts)
    )
    assert reached == combinations, f"{len(combinations - reached)} combinations were not reached"
    # What the test is about did happen.
    for name in ("num_aborted", "num_preemptions", "num_swaps", "num_lost_swaps", "num_cached_tokens"):
        assert getattr(total, name) > 0, f"{name} is 0: the traffic is too tame"
    assert 0.3 < total.worst_wait <= 1.0, "nobody waits, or the bounds are far off"


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


def test_so_many_cases_as_combinations_have_each_of_them() -> None:
    combinations = all_combinations()
    drawn = [draw_case(0, number).combination for number in range(len(combinations))]
    assert sorted(drawn) == combinations
    assert len({one.scheduler for one in combinations}) * 4 * 3 * 12 <= len(combinations)
    third = {replace(one, admission="") for one in drawn[: len(combinations) // 3]}
    assert len(third) == len(combinations) // 3, "the first third has all but the admission policies"
    assert len({(one.admission, one.cache) for one in drawn[: len(third)]}) == 3 * 4


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
