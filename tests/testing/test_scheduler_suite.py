"""The scheduler suite passes a right scheduler and fails each planted bug, in the tests that are made for it."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.testing.planted_scheduler import Bug, scheduler_info
from tests.testing.suite_runner import FAILED, PASSED, SKIPPED, make_suite, run_test, test_names
from tokenloom.testing import SchedulerSuite

RANDOM = "test_random_traffic_ends_and_each_request_yields_what_it_yields_alone"
STARVES = "test_nobody_waits_longer_than_stated"
EQUAL = "test_equal_arrivals_give_equal_decisions"
SLOTS = "test_all_slots_are_used"
GOES_ON = "test_a_preempted_request_goes_on_where_it_was"
STARVES_AFTERWARDS = "test_a_preempted_request_waits_no_longer_than_stated"
NO_MEMORY = "test_requests_that_ended_take_no_memory"
AGAIN = "test_schedule_gives_the_same_plan_when_asked_again"

CAUGHT_BY: dict[str, tuple[str, ...]] = {
    "one_token_over": ("test_a_plan_keeps_to_the_budget_and_the_slots",),
    "one_slot_over": ("test_a_plan_keeps_to_the_budget_and_the_slots", RANDOM),
    "last_come_first_served": (STARVES,),
    "shortest_first": (STARVES,),
    "most_urgent_first": (STARVES,),
    "empty_plan": ("test_every_step_computes_something",),
    "victim_is_scheduled": ("test_victims_hold_memory_and_are_not_scheduled",),
    "preempts_all": ("test_growing_requests_are_not_preempted_in_a_storm",),
    "ignores_pending": ("test_blocks_on_their_way_stop_preemption",),
    "counts_in_schedule": (AGAIN,),
    "draws_at_random": (AGAIN, EQUAL),
    "order_of_a_set": (EQUAL,),
    "order_of_addresses": (EQUAL,),
    "waits_for_the_impossible": ("test_a_prompt_as_large_as_the_memory_holds_up_nobody",),
    "keeps_the_aborted": ("test_an_aborted_request_is_forgotten", RANDOM),
    "remembers_the_ended": (NO_MEMORY,),
    "forgets_the_preempted": (GOES_ON, STARVES_AFTERWARDS),
    "forgets_the_swapped": (GOES_ON, STARVES_AFTERWARDS),
    "serves_the_preempted_last": (STARVES_AFTERWARDS,),
    "counts_what_it_is_told": ("test_a_preemption_told_again_changes_nothing",),
    "queues_twice": (NO_MEMORY,),
    "fits_before_it_cuts": ("test_the_tail_of_a_prompt_shares_its_step_with_the_next_prompt",),
    "cannot_cut": ("test_a_prompt_longer_than_the_budget_is_cut",),
    "ignores_the_chunk_limit": ("test_chunks_keep_to_max_chunk_tokens",),
    "need_before_the_cache": ("test_cached_tokens_are_not_scheduled_again",),
    "most_retained_first": (STARVES,),
    "longest_retained_last": (STARVES,),
    "three_at_most": (SLOTS,),
    "serves_what_is_in_flight": ("test_a_request_whose_tokens_are_all_in_flight_is_left_alone",),
}


def planted(bug: str, *flags: str) -> type[SchedulerSuite]:
    return make_suite(SchedulerSuite, scheduler_info(*flags), settings={"bug": bug})


def test_right_scheduler_passes_every_test() -> None:
    outcomes = {name: run_test(planted("none"), name) for name in test_names(SchedulerSuite)}
    assert {name: outcome for name, outcome in outcomes.items() if outcome[0] != PASSED} == {}


@pytest.mark.parametrize(("bug", "name"), [(bug, name) for bug, names in CAUGHT_BY.items() for name in names])
def test_planted_bug_is_caught(bug: str, name: str) -> None:
    outcome, message = run_test(planted(bug), name)
    assert outcome == FAILED
    assert message.split(": ", 2)[2], "a failure without a message"


def test_every_bug_is_caught_and_every_test_catches_one() -> None:
    assert set(CAUGHT_BY) == set(get_args(Bug)) - {"none"}
    assert {name for names in CAUGHT_BY.values() for name in names} == set(test_names(SchedulerSuite))


@pytest.mark.parametrize(
    ("bug", "flag", "skipped"),
    [
        ("shortest_first", "unbounded_wait", {STARVES, STARVES_AFTERWARDS}),
        ("cannot_cut", "whole_prompts", {"test_the_tail_of_a_prompt_shares_its_step_with_the_next_prompt"}),
        (
            "fits_before_it_cuts",
            "spare_budget",
            {SLOTS, "test_the_tail_of_a_prompt_shares_its_step_with_the_next_prompt"},
        ),
    ],
)
def test_what_is_declared_is_no_bug(bug: str, flag: str, skipped: set[str]) -> None:
    outcomes = {name: run_test(planted(bug, flag), name)[0] for name in test_names(SchedulerSuite)}
    assert {name for name, outcome in outcomes.items() if outcome == SKIPPED} == skipped
    assert FAILED not in outcomes.values()


def test_cutting_in_spite_of_whole_prompts_is_caught() -> None:
    suite = make_suite(SchedulerSuite, scheduler_info("whole_prompts"), settings={"max_chunk_tokens": 3})
    outcome, message = run_test(suite, "test_a_prompt_longer_than_the_budget_is_cut")
    assert outcome == FAILED
    assert "whole_prompts is declared" in message
