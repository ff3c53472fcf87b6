"""The victim policies that look at requests: whom each one chooses."""

from __future__ import annotations

import pytest

from tests.plugins.schedulers.scheduling import LIMITS
from tokenloom.interfaces.scheduler import SchedulerView
from tokenloom.interfaces.scheduling_policy import VictimPolicy
from tokenloom.plugins import default_registry
from tokenloom.request import Request, RequestStatus
from tokenloom.testing.stub_model import stub_request
from tokenloom.testing.suite import build_choice


def policy(name: str) -> VictimPolicy:
    built = build_choice(default_registry().get("scheduler.victim", name).info, {}).build(LIMITS)
    assert isinstance(built, VictimPolicy)
    return built


def running(name: str, num_computed: int, priority: int = 0, num_cached: int = 0) -> Request:
    request = stub_request(name, range(num_computed + 1), status=RequestStatus.RUNNING)
    request.num_computed_tokens, request.priority, request.num_cached_tokens = num_computed, priority, num_cached
    return request


def choice(name: str, *candidates: Request) -> str | None:
    view = SchedulerView(0, 0.0, (), candidates, LIMITS)
    victim = policy(name).select(candidates[0], candidates, view) if candidates else None
    return None if victim is None else victim.request_id


@pytest.mark.parametrize("name", ["lowest_priority", "least_recompute", "most_blocks"])
def test_of_equal_candidates_the_last_admitted_goes(name: str) -> None:
    assert choice(name, *[running(letter, 10) for letter in "abc"]) == "c"
    assert choice(name, running("a", 10)) == "a"
    assert policy(name).select(running("a", 1), [], SchedulerView(0, 0.0, (), (), LIMITS)) is None


def test_lowest_priority_takes_the_largest_number() -> None:
    assert choice("lowest_priority", running("a", 5, 7), running("b", 50, 2), running("c", 1, 3)) == "a"
    assert choice("lowest_priority", running("a", 5, 7), running("b", 50, 7), running("c", 1, -3)) == "b"


def test_least_recompute_takes_the_fewest_computed_tokens() -> None:
    assert choice("least_recompute", running("a", 30), running("b", 9), running("c", 10)) == "b"


def test_least_recompute_does_not_count_what_is_likely_to_be_cached() -> None:
    assert choice("least_recompute", running("a", 30, num_cached=24), running("b", 9), running("c", 10)) == "a"


def test_most_blocks_takes_the_largest() -> None:
    assert choice("most_blocks", running("a", 10), running("b", 31), running("c", 30)) == "c", "eight blocks each"
    assert choice("most_blocks", running("a", 10), running("b", 33), running("c", 30)) == "b"
    assert choice("most_blocks", running("a", 99), running("b", 5), running("c", 4)) == "a"
