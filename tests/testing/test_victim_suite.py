"""The victim suite passes a right policy and fails each planted bug."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.testing.planted_victim import Bug, victim_info
from tests.testing.suite_runner import FAILED, PASSED, make_suite, run_test, test_names
from tokenloom.testing import VictimSuite

CAUGHT_BY: dict[str, tuple[str, ...]] = {
    "returns_a_copy": ("test_the_victim_is_a_candidate",),
    "fails_on_equals": ("test_candidates_that_are_all_alike_are_no_problem",),
    "draws_at_random": ("test_equal_candidates_give_equal_choices",),
    "reads_the_clock": ("test_equal_candidates_give_equal_choices",),
    "order_of_a_set": ("test_equal_candidates_give_equal_choices",),
    "sorts_in_place": ("test_select_changes_nothing",),
    "lowers_a_priority": ("test_select_changes_nothing",),
    "remembers_calls": ("test_select_changes_nothing",),
    "takes_nobody": ("test_growing_requests_get_their_memory", "test_random_traffic_ends"),
}


def planted(bug: str) -> type[VictimSuite]:
    return make_suite(VictimSuite, victim_info(), settings={"bug": bug})


def test_right_policy_passes_every_test() -> None:
    outcomes = {name: run_test(planted("none"), name) for name in test_names(VictimSuite)}
    assert {name: outcome for name, outcome in outcomes.items() if outcome[0] != PASSED} == {}


@pytest.mark.parametrize(("bug", "name"), [(bug, name) for bug, names in CAUGHT_BY.items() for name in names])
def test_planted_bug_is_caught(bug: str, name: str) -> None:
    outcome, message = run_test(planted(bug), name)
    assert outcome == FAILED
    assert message.split(": ", 2)[2], "a failure without a message"


def test_every_bug_is_caught_and_every_test_catches_one() -> None:
    assert set(CAUGHT_BY) == set(get_args(Bug)) - {"none"}
    assert {name for names in CAUGHT_BY.values() for name in names} == set(test_names(VictimSuite))
