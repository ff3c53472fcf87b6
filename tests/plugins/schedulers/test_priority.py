"""priority: urgent requests first, running or waiting; slots, tokens and blocks of less urgent ones are theirs."""

from __future__ import annotations

import pytest

from tests.plugins.schedulers.scheduling import ask, build, first_steps, harness_with, served
from tokenloom.plugins import default_registry
from tokenloom.testing.desk import Desk
from tokenloom.testing.suite import build_choice


@pytest.mark.parametrize("ageing_s", [None, 10.0])
def test_urgent_request_takes_a_slot_when_only_slots_are_short(ageing_s: float | None) -> None:
    harness = harness_with("priority", {"ageing_s": ageing_s}, max_num_seqs=2)
    for name in "ab":
        ask(harness, name, 4, 60, priority=10)
    harness.step()
    urgent = ask(harness, "urgent", 4, 2, priority=0)
    harness.step()
    assert urgent.num_output_tokens == 1
    assert [harness.requests[name].num_preemptions for name in "ab"] == [0, 1]
    harness.run()
    harness.check_truth()
    assert harness.engine.stats.num_preemptions == 1


def test_urgent_request_takes_tokens_from_a_long_prompt_that_runs() -> None:
    harness = harness_with("priority", budget=4)
    ask(harness, "long", 60, 1, priority=5)
    harness.step()
    urgent = ask(harness, "urgent", 4, 1, priority=0)
    harness.step()
    assert urgent.is_finished
    harness.run()
    harness.check_truth()
    assert harness.engine.stats.num_preemptions == 0


def test_urgent_request_takes_as_many_blocks_as_it_needs_and_no_more() -> None:
    desk = Desk((10,), cache="none")
    for index, name in enumerate("abc"):
        desk.run(name, range(100 * index, 100 * index + 12)).priority = 5 + index
    desk.wait("urgent", range(400, 416)).priority = 0
    plan = build("priority", desk.limits).schedule(desk.view(), desk.ledger())
    assert [victim.request_id for victim in plan.preemptions] == ["c", "b"]
    assert dict(plan.num_scheduled_tokens) == {"urgent": 16, "a": 1}
    desk.commit(plan)


def test_nobody_is_displaced_for_a_request_that_does_not_fit_then_either() -> None:
    desk = Desk((10,), cache="none")
    desk.run("urgent", range(24)).priority = 0
    desk.run("background", range(100, 112)).priority = 9
    desk.wait("large", range(200, 220)).priority = 1
    plan = build("priority", desk.limits).schedule(desk.view(), desk.ledger())
    assert plan.preemptions == ()
    assert dict(plan.num_scheduled_tokens) == {"urgent": 1, "background": 1}


@pytest.mark.parametrize("ageing_s", [None, 1.0, 1e-9])
def test_equal_priority_is_never_displaced(ageing_s: float | None) -> None:
    harness = harness_with("priority", {"ageing_s": ageing_s}, max_num_seqs=1)
    ask(harness, "first", 4, 6, priority=3)
    harness.step()
    ask(harness, "second", 4, 1, priority=3)
    ask(harness, "third", 4, 1, priority=3)
    harness.run()
    assert harness.engine.stats.num_preemptions == 0
    assert list(first_steps(harness)) == ["first", "second", "third"]


def test_later_request_of_equal_priority_keeps_its_slot() -> None:
    """The earlier one was preempted for blocks, say, and waits again."""
    desk = Desk(max_num_seqs=1)
    running, waiting = desk.run("later", range(9)), desk.wait("earlier", [1, 2])
    running.priority = waiting.priority = 3
    running.arrival_time_s = 50.0
    assert served(desk, "priority") == {"later": 1}
    running.priority = 4
    assert served(desk, "priority") == {"earlier": 2}


def test_displaced_request_does_not_displace_in_turn() -> None:
    """Aged enough to come first, it waits for the slot; and whoever took it keeps it."""
    harness = harness_with("priority", {"ageing_s": 3.0}, max_num_seqs=1)
    ask(harness, "old", 4, 30, priority=4)
    harness.step()
    ask(harness, "urgent", 4, 30, priority=0)
    harness.run()
    harness.check_truth()
    assert harness.engine.stats.num_preemptions == 1


def test_aged_request_is_not_displaced() -> None:
    harness = harness_with("priority", {"ageing_s": 1.0}, max_num_seqs=1)
    ask(harness, "old", 4, 30, priority=4)
    for _ in range(5):
        harness.step()
    ask(harness, "urgent", 4, 1, priority=0)
    harness.run()
    assert harness.engine.stats.num_preemptions == 0


def test_ageing_makes_up_for_one_level_in_the_time_that_is_set() -> None:
    desk = Desk(max_num_seqs=1)
    desk.wait("old", [1]).priority = 2
    late = desk.wait("late", [2])
    late.priority, late.arrival_time_s = 1, 9.9
    assert list(served(desk, "priority", ageing_s=10.0)) == ["late"]
    late.arrival_time_s = 10.0
    assert list(served(desk, "priority", ageing_s=10.0)) == ["old"]
    assert list(served(desk, "priority", ageing_s=None)) == ["late"]


@pytest.mark.parametrize("victim", ["last_in", "lowest_priority", "most_blocks"])
def test_growing_request_takes_memory_from_less_urgent_ones_whatever_the_victim_policy(victim: str) -> None:
    """last_in alone would name the urgent one, which was admitted last."""
    choice = build_choice(default_registry().get("scheduler.victim", victim).info, {})
    harness = harness_with("priority", {"victim": choice}, num_blocks=(10,), max_num_seqs=3, cache="none")
    ask(harness, "background", 8, 24, priority=7)
    harness.step()
    ask(harness, "urgent", 8, 24, priority=0)
    harness.run()
    harness.check_truth()
    assert harness.requests["urgent"].num_preemptions == 0
    assert harness.requests["background"].num_preemptions > 0
