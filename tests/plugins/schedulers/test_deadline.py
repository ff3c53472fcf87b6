"""deadline: least slack first, the hopeless last, nobody for ever."""

from __future__ import annotations

from typing import Any

from tests.plugins.schedulers.scheduling import TimedSteps, ask, build, first_steps, harness_with, served
from tokenloom.interfaces.scheduler_events import StepLanded
from tokenloom.request import Request
from tokenloom.testing.desk import Desk
from tokenloom.testing.engine_harness import EngineHarness


def waiting(desk: Desk, name: str, num_prompt: int, **fields: Any) -> Request:
    start = 1_000 * (len(desk.requests) + 1)
    request = desk.wait(name, range(start, start + num_prompt))
    for field, value in fields.items():
        setattr(request, field, value)
    return request


def test_least_time_to_the_target_comes_first() -> None:
    desk = Desk((40,))
    waiting(desk, "default", 4)
    waiting(desk, "soon", 4, ttft_slo_s=2.0)
    waiting(desk, "late", 4, ttft_slo_s=30.0)
    waiting(desk, "sooner", 4, ttft_slo_s=9.0, arrival_time_s=-8.0)
    assert list(served(desk, "deadline")) == ["sooner", "soon", "default", "late"]
    assert list(served(desk, "deadline", default_ttft_slo_s=50.0)) == ["sooner", "soon", "late", "default"]


def test_hopeless_requests_come_last_and_in_order_of_arrival() -> None:
    desk = Desk((40,))
    desk.clock.advance(10.0)
    waiting(desk, "missed", 4, ttft_slo_s=1.0, arrival_time_s=2.0)
    waiting(desk, "missed_later", 4, ttft_slo_s=0.5, arrival_time_s=3.0)
    waiting(desk, "in_time", 4, ttft_slo_s=20.0, arrival_time_s=9.0)
    assert list(served(desk, "deadline")) == ["in_time", "missed", "missed_later"]


def test_after_max_wait_s_a_hopeless_request_goes_first() -> None:
    desk = Desk((40,))
    desk.clock.advance(10.0)
    waiting(desk, "missed", 4, ttft_slo_s=1.0)
    waiting(desk, "in_time", 4, ttft_slo_s=0.1, arrival_time_s=10.0)
    assert list(served(desk, "deadline", max_wait_s=10.1)) == ["in_time", "missed"]
    assert list(served(desk, "deadline", max_wait_s=10.0)) == ["missed", "in_time"]
    assert list(served(desk, "deadline", max_wait_s=None)) == ["in_time", "missed"]


def test_slack_is_what_is_left_after_computing_the_prompt() -> None:
    """Steps of 10 tokens taking 1 s: forty tokens due in 6 s have 2 s of slack, four due in 3 s have 2.6."""
    desk = Desk((60,))
    waiting(desk, "short", 4, ttft_slo_s=3.0)
    waiting(desk, "long", 40, ttft_slo_s=6.0)
    waiting(desk, "hopeless", 70, ttft_slo_s=6.0)
    scheduler = build("deadline", desk.limits)
    before = scheduler.schedule(desk.view(), desk.ledger())
    assert list(before.num_scheduled_tokens) == ["short", "long", "hopeless"]
    for step in range(50):
        scheduler.observe(StepLanded(0.0, step, 0.1 * (1 + step % 20), 1 + step % 20, {}))
    after = scheduler.schedule(desk.view(), desk.ledger())
    assert list(after.num_scheduled_tokens) == ["long", "short", "hopeless"]


def test_running_requests_follow_their_target_per_output_token() -> None:
    """Two tokens of budget for three: those due first get them, whoever was admitted first."""
    desk = Desk((40,), budget=2)
    desk.clock.advance(5.0)
    for name, tpot_slo_s, num_output in (("slow", 2.0, 4), ("fast", 1.3, 4), ("behind", 0.1, 4), ("due", 1.0, 5)):
        request = desk.run(name, range(9))
        request.first_token_time_s, request.tpot_slo_s = 0.5, tpot_slo_s
        request.output_token_ids, request.num_computed_tokens = [0] * num_output, 8 + num_output
    assert served(desk, "deadline") == {"due": 1, "fast": 1}


def test_decoding_goes_before_prompts_and_an_urgent_prompt_before_one_that_runs() -> None:
    desk = Desk((60,), budget=16)
    desk.run("prompt", range(40), 8)
    desk.run("decoding", range(100, 109))
    waiting(desk, "urgent", 6, ttft_slo_s=0.5)
    waiting(desk, "relaxed", 6, ttft_slo_s=20.0)
    assert served(desk, "deadline") == {"decoding": 1, "urgent": 6, "prompt": 9}


def overloaded(name: str) -> EngineHarness:
    """Two a second arrive where one can be served; each one's first token is due within 6 s."""
    harness = harness_with(name, max_num_seqs=1)
    for step in range(40):
        for index in range(2):
            ask(harness, f"r{step}_{index}", 4, 1, ttft_slo_s=6.0)
        harness.step()
    harness.run()
    return harness


def num_in_time(harness: EngineHarness) -> int:
    times = [(r.first_token_time_s or 1e9) - r.arrival_time_s for r in harness.requests.values()]
    return sum(time_s <= 6.0 for time_s in times)


def test_more_requests_meet_their_target_than_in_order_of_arrival_when_there_are_too_many() -> None:
    fcfs, deadline = num_in_time(overloaded("fcfs")), num_in_time(overloaded("deadline"))
    assert fcfs < 15
    assert deadline >= 38


def test_memory_is_taken_from_the_hopeless_and_never_from_those_that_come_first() -> None:
    desk = Desk((9,), cache="none")
    desk.clock.advance(20.0)
    for index, (name, ttft_slo_s) in enumerate((("lost", 1.0), ("growing", 30.0), ("late", 2.0), ("last", 60.0))):
        request = desk.run(name, range(100 * index, 100 * index + 9), 8)
        request.ttft_slo_s = ttft_slo_s
    plan = build("deadline", desk.limits).schedule(desk.view(), desk.ledger())
    assert [victim.request_id for victim in plan.preemptions] == ["late", "lost"]
    assert "growing" in plan.num_scheduled_tokens
    desk.commit(plan)


def test_requests_that_are_all_late_do_not_take_memory_from_each_other_for_ever() -> None:
    """With waiting prompts before running ones, and victims chosen by another order, these two would."""
    harness = harness_with("deadline", {"max_wait_s": 3.0, "max_chunk_tokens": 3}, num_blocks=(11,), max_num_seqs=2)
    for index in range(6):
        ask(harness, f"r{index}", 28, 8, priority=5 - index, ttft_slo_s=1.0)
    harness.run(max_steps=400)
    harness.check_truth()


def test_order_of_equal_steps_is_equal() -> None:
    def order() -> list[str]:
        harness = EngineHarness(
            scheduler=lambda context: TimedSteps(build("deadline", context), lambda step, count: 0.1 + 0.01 * count),
            vocab_size=10_000_000,
            max_num_seqs=2,
        )
        for index in range(12):
            ask(harness, f"r{index}", 3 + 5 * (index % 3), 3, ttft_slo_s=4.0 + index % 5)
        harness.run()
        return list(first_steps(harness))

    assert order() == order()
