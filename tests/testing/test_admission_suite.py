"""The admission suite passes a right policy and fails each planted bug."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.testing.planted_admission import Bug, admission_info
from tests.testing.suite_runner import FAILED, PASSED, make_suite, run_test, test_names
from tokenloom.testing import AdmissionSuite

CAUGHT_BY: dict[str, tuple[str, ...]] = {
    "gives_a_share": ("test_the_answer_is_a_count",),
    "goes_below_zero": ("test_the_answer_is_a_count",),
    "says_it_never_refuses": ("test_the_answer_is_a_count",),
    "draws_at_random": ("test_equal_questions_give_equal_answers",),
    "reads_the_clock": ("test_equal_questions_give_equal_answers",),
    "order_of_a_set": ("test_equal_questions_give_equal_answers",),
    "sorts_in_place": ("test_asking_changes_nothing",),
    "lowers_a_priority": ("test_asking_changes_nothing",),
    "takes_blocks": ("test_asking_changes_nothing",),
    "remembers_questions": ("test_asking_changes_nothing",),
    "remembers_requests": ("test_requests_that_ended_take_no_memory",),
    "counts_heads": ("test_ample_memory_keeps_nobody_out",),
    "wants_the_impossible": ("test_ample_memory_keeps_nobody_out",),
    "fails_when_full": ("test_who_is_kept_out_starts_in_the_end", "test_random_traffic_ends"),
}


def planted(bug: str) -> type[AdmissionSuite]:
    return make_suite(AdmissionSuite, admission_info(), settings={"bug": bug})


def test_right_policy_passes_every_test() -> None:
    outcomes = {name: run_test(planted("none"), name) for name in test_names(AdmissionSuite)}
    assert {name: outcome for name, outcome in outcomes.items() if outcome[0] != PASSED} == {}


@pytest.mark.parametrize(("bug", "name"), [(bug, name) for bug, names in CAUGHT_BY.items() for name in names])
def test_planted_bug_is_caught(bug: str, name: str) -> None:
    outcome, message = run_test(planted(bug), name)
    assert outcome == FAILED
    assert message.split(": ", 2)[2], "a failure without a message"


def test_every_bug_is_caught_and_every_test_catches_one() -> None:
    assert set(CAUGHT_BY) == set(get_args(Bug)) - {"none"}
    assert {name for names in CAUGHT_BY.values() for name in names} == set(test_names(AdmissionSuite))
