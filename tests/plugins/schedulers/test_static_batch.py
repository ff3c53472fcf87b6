"""static_batch: a batch runs to its end before the next one starts."""

from __future__ import annotations

from itertools import pairwise

from tests.plugins.schedulers.scheduling import ask, first_steps, harness_with, served
from tokenloom.testing.desk import Desk
from tokenloom.testing.engine_harness import EngineHarness


def test_nobody_joins_until_all_of_a_batch_have_ended() -> None:
    harness = harness_with("static_batch", max_num_seqs=2)
    for name, count in (("a", 1), ("b", 9), ("c", 2), ("d", 2), ("e", 1)):
        ask(harness, name, 3, count)
    harness.run()
    assert first_steps(harness) == {"a": 0, "b": 0, "c": 9, "d": 9, "e": 11}


def test_a_batch_starts_over_several_steps_when_its_prompts_exceed_the_budget() -> None:
    harness = harness_with("static_batch", max_num_seqs=3, budget=8)
    for name in "abcd":
        ask(harness, name, 8, 6)
    harness.run()
    assert first_steps(harness) == {"a": 0, "b": 1, "c": 2, "d": 9}


def test_who_comes_while_a_batch_forms_waits_for_the_next_one() -> None:
    harness = harness_with("static_batch", max_num_seqs=4, budget=8)
    ask(harness, "a", 8, 8)
    ask(harness, "b", 8, 4)
    harness.step()
    ask(harness, "late", 1, 1)
    harness.run()
    assert first_steps(harness)["late"] == 8


def test_a_batch_that_ends_in_its_first_step_makes_room_for_the_next() -> None:
    harness = harness_with("static_batch", max_num_seqs=2)
    for index in range(5):
        ask(harness, f"r{index}", 2, 1)
    harness.run()
    assert list(first_steps(harness).values()) == [0, 0, 1, 1, 2]


def test_members_that_ended_at_once_are_not_replaced() -> None:
    harness = harness_with("static_batch", max_num_seqs=2, budget=5)
    for name, num_prompt, count in (("a", 4, 1), ("b", 4, 4), ("c", 1, 1)):
        ask(harness, name, num_prompt, count)
    harness.run()
    assert first_steps(harness) == {"a": 0, "b": 0, "c": 5}


def test_an_aborted_member_does_not_hold_up_the_next_batch() -> None:
    harness = harness_with("static_batch", max_num_seqs=2)
    for name in "ab":
        ask(harness, name, 2, 30)
    harness.step()
    ask(harness, "c", 2, 1)
    for name in "ab":
        assert harness.engine.abort(name) is not None
    harness.step()
    assert harness.requests["c"].is_finished


def test_a_preempted_member_comes_back_within_its_batch() -> None:
    harness = harness_with("static_batch", max_num_seqs=2, num_blocks=(6,), cache="none")
    for name in ("a", "b", "c"):
        ask(harness, name, 7, 10)
    harness.run()
    harness.check_truth()
    assert harness.requests["b"].num_preemptions > 0
    ends = {name: harness.requests[name].finish_time_s or 0.0 for name in "abc"}
    assert first_steps(harness)["c"] >= ends["b"] - 1, ends


def never_mixed(harness: EngineHarness, batch_size: int) -> None:
    """Whoever starts in a batch arrived among its first ones, and all of an earlier batch had ended by then."""
    first = first_steps(harness)
    names = list(harness.requests)
    batches = [names[start : start + batch_size] for start in range(0, len(names), batch_size)]
    last = {row.request_id: plan.step_id for plan in harness.executor.plans for row in plan.rows}
    for earlier, later in pairwise(batches):
        assert min(first[name] for name in later) > max(last[name] for name in earlier), f"{first}, {last}"


def test_member_that_waits_for_a_prefix_is_passed_by_members_only() -> None:
    harness = harness_with("static_batch", max_num_seqs=3, num_blocks=(200,))
    for index in range(9):
        harness.add(harness.request(f"shares{index}", [*range(40), 1_000 + index], 4 + index % 3))
        harness.add(harness.request(f"other{index}", range(2_000 + 50 * index, 2_012 + 50 * index), 1 + 5 * index % 7))
    harness.run()
    harness.check_truth()
    never_mixed(harness, 3)


def test_member_that_is_held_back_for_its_length_is_passed_by_members_only() -> None:
    limits = {"max_chunk_tokens": 8, "max_long_partial_prefills": 1, "long_prefill_token_threshold": 10}
    harness = harness_with("static_batch", limits, max_num_seqs=2, budget=64, num_blocks=(200,))
    for index, length in enumerate((40, 40, 5, 5, 40, 5)):
        ask(harness, f"r{index}", length, 6)
    harness.run()
    harness.check_truth()
    never_mixed(harness, 2)


def test_who_comes_after_a_batch_was_aborted_before_it_began_takes_its_place() -> None:
    harness = harness_with("static_batch", max_num_seqs=2)
    for name in "abc":
        ask(harness, name, 2, 3)
    assert harness.engine.abort("a") is not None
    ask(harness, "d", 2, 3)
    harness.run()
    assert [first_steps(harness)[name] for name in "bcd"] == [0, 0, 3]


def test_nobody_joins_those_who_run_where_no_event_told_of_anybody() -> None:
    """As in a plan for what lies on a desk: those that wait together are then a batch."""
    desk = Desk()
    desk.run("r", range(9))
    desk.wait("w", [1, 2])
    assert served(desk, "static_batch") == {"r": 1}
