"""slo_adaptive: budgets that keep step times under a target, learned from the steps themselves."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.plugins.schedulers.scheduling import LIMITS, TimedSteps, ask, build, served
from tokenloom.interfaces.scheduler import SchedulerContext
from tokenloom.interfaces.scheduler_events import StepLanded
from tokenloom.plugins import default_registry
from tokenloom.testing.desk import Desk
from tokenloom.testing.engine_harness import EngineHarness
from tokenloom.testing.suite import build_choice
from tokenloom_schedulers.slo_adaptive import SloAdaptivePolicy
from tokenloom_schedulers.step_time import StepTime

TARGET_S = 0.05


def line(step: int, num_tokens: int) -> float:
    """10 ms, and 0.2 ms a token: 200 tokens fit the target."""
    return 0.01 + 0.0002 * num_tokens


def noisy(step: int, num_tokens: int) -> float:
    """The same within 10 %."""
    return line(step, num_tokens) * random.Random(step).uniform(0.9, 1.1)


def loaded(
    duration_s: Callable[[int, int], float], num_steps: int = 400, num_output: int = 40, **settings: Any
) -> tuple[TimedSteps, EngineHarness]:
    """An engine that always has prompts to compute, up to 2,048 tokens a step."""
    timed: list[TimedSteps] = []

    def make(context: SchedulerContext) -> TimedSteps:
        timed.append(TimedSteps(build("slo_adaptive", context, target_tpot_s=TARGET_S, **settings), duration_s))
        return timed[0]

    harness = EngineHarness(
        scheduler=make,
        num_blocks=(4_000,),
        block_size=16,
        max_num_seqs=256,
        budget=2_048,
        max_model_len=1_024,
        vocab_size=10_000_000,
        checks="off",
    )
    for step in range(num_steps):
        while harness.engine.num_waiting < 3:
            ask(harness, f"r{step}_{len(harness.requests)}", 100 + 37 * len(harness.requests) % 300, num_output)
        harness.step()
    return timed[0], harness


@pytest.mark.parametrize("duration_s", [line, noisy])
def test_p99_of_the_step_time_stays_under_the_target_and_close_to_it(duration_s: Callable[[int, int], float]) -> None:
    timed, _ = loaded(duration_s)
    settled = [seconds for _, seconds in timed.steps[100:]]
    assert np.percentile(settled, 99) <= TARGET_S
    assert np.median(settled) >= 0.8 * TARGET_S, "no more is given up than is needed"
    assert max(seconds for _, seconds in timed.steps[:100]) <= 1.2 * TARGET_S, "nor is the target missed to learn it"


def test_budget_follows_when_steps_become_slower() -> None:
    timed, _ = loaded(lambda step, count: line(step, count) * (1.0 if step < 200 else 2.5))
    assert np.percentile([seconds for _, seconds in timed.steps[350:]], 99) <= 1.05 * TARGET_S


def test_sequences_are_limited_when_decoding_alone_fills_the_target() -> None:
    """1 ms a token: 40 requests fit, and 256 slots do not tempt."""
    timed, harness = loaded(lambda step, count: 0.01 + 0.001 * count, num_output=200, min_prefill_tokens=4)
    assert np.percentile([seconds for _, seconds in timed.steps[150:]], 99) <= 1.1 * TARGET_S
    assert harness.engine.num_running <= 41


def test_target_that_cannot_be_met_stops_nobody() -> None:
    timed, harness = loaded(lambda step, count: 1.0, num_steps=120, num_output=3)
    assert sum(request.is_finished for request in harness.requests.values()) >= 3
    assert max(count for count, _ in timed.steps[20:]) <= 16 + 1


def test_decoding_requests_are_never_left_out() -> None:
    _, harness = loaded(line, num_steps=150)
    for plan in harness.executor.plans[:-1]:
        rows = {row.request_id: row for row in plan.rows}
        following = {row.request_id for row in harness.executor.plans[plan.step_id + 1].rows}
        going_on = {name for name, row in rows.items() if row.samples and not harness.requests[name].is_finished}
        assert going_on <= following


def test_nobody_is_admitted_while_as_many_run_as_the_budget_has_tokens() -> None:
    desk = Desk((40,))
    for index in range(4):
        desk.run(f"r{index}", range(20 * index, 20 * index + 9))
    desk.wait("w", [1, 2])
    assert "w" not in served(desk, "slo_adaptive", initial_tokens=4)
    assert "w" in served(desk, "slo_adaptive", initial_tokens=5)


def test_decoding_goes_before_prompts_that_were_admitted_earlier() -> None:
    desk = Desk((40,), budget=8)
    desk.run("prompt", range(40), 8)
    desk.run("decoding", range(100, 109), num_drafts=2)
    assert served(desk, "slo_adaptive") == {"decoding": 3, "prompt": 5}


def test_drafts_of_younger_requests_starve_no_prompt() -> None:
    """With drafts that fill the budget, the prompt would wait for the end of a request that came after it."""
    desk = Desk((40,), budget=2)
    desk.run("prompt", range(40), 8)
    desk.run("decoding", range(100, 109), num_drafts=3)
    assert served(desk, "slo_adaptive") == {"decoding": 1, "prompt": 1}


@pytest.mark.parametrize("victim", ["last_in", "least_recompute", "lowest_priority", "most_blocks"])
def test_memory_goes_to_who_came_first_whatever_is_served_first(victim: str) -> None:
    desk = Desk((5,), cache="none")
    desk.run("prompt", range(12), 8)
    desk.run("decoding", range(100, 109))
    part = build_choice(default_registry().get("scheduler.victim", victim).info, {})
    assert served(desk, "slo_adaptive", victim=part) == {"prompt": 4}


def policy(**settings: Any) -> tuple[SloAdaptivePolicy, Callable[[int, float], int]]:
    limits = SchedulerContext(64, 1_000, 2_048, 16, 400)
    scheduler = build("slo_adaptive", limits, target_tpot_s=TARGET_S, **settings)
    inner = scheduler._policy  # type: ignore[attr-defined]
    assert isinstance(inner, SloAdaptivePolicy)

    def land(num_tokens: int, duration_s: float) -> int:
        scheduler.observe(StepLanded(0.0, 0, duration_s, num_tokens, {}))
        return inner.token_budget

    return inner, land


def test_budget_doubles_at_most_and_only_when_it_was_used() -> None:
    inner, land = policy(initial_tokens=100)
    assert inner.token_budget == 100
    assert land(49, 0.001) == 100
    assert land(50, 0.001) == 200
    assert land(200, 0.001) == 400
    assert [land(400, 0.001), land(800, 0.001), land(1_000, 0.001)] == [800, 1_000, 1_000]


def test_one_slow_step_in_a_hundred_is_within_the_quantile() -> None:
    _, land = policy(initial_tokens=100)
    budgets = [land(50 + step % 100, line(step, 50 + step % 100)) for step in range(300)]
    steady = budgets[-1]
    land(100, 0.040)
    assert [land(50 + step % 100, line(step, 50 + step % 100)) for step in range(50)][-1] >= 0.9 * steady


def settled(num_steps: int = 60, **settings: Any) -> tuple[Callable[[int, float], int], int]:
    """A policy that has seen so many steps of changing size within 10 % of the line, and its budget."""
    _, land = policy(initial_tokens=100, **settings)
    budget = [land(50 + step % 100, noisy(step, 50 + step % 100)) for step in range(num_steps)][-1]
    return land, budget


@pytest.mark.parametrize("num_before", [30, 60, 400])
@pytest.mark.parametrize("slow_s", [0.2, 3.0, 60.0])
def test_one_slow_step_costs_little_and_not_for_long(num_before: int, slow_s: float) -> None:
    land, before = settled(num_before)
    at_once = land(100, slow_s)
    after = [land(50 + step % 100, noisy(step, 50 + step % 100)) for step in range(40)]
    assert min(at_once, *after) >= 0.5 * before
    assert after[-1] >= 0.75 * before


@pytest.mark.parametrize("num_slow", [1, 2, 3, 5, 20])
def test_budget_is_back_within_few_steps_after_some_slow_ones(num_slow: int) -> None:
    timed, _ = loaded(lambda step, count: noisy(step, count) + (3.0 if 100 <= step < 100 + num_slow else 0.0), 160)
    tokens = [count for count, _ in timed.steps]
    assert min(tokens[100 + num_slow + 30 :]) >= 0.8 * np.median(tokens[50:100])
    assert max(seconds for _, seconds in timed.steps[100 + num_slow + 20 :]) <= 1.1 * TARGET_S


def test_slow_first_step_is_forgotten() -> None:
    timed, _ = loaded(lambda step, count: noisy(step, count) + (5.0 if step == 0 else 0.0), 60)
    assert min(count for count, _ in timed.steps[30:]) >= 150, "200 fit without noise"


@pytest.mark.parametrize("factor", [1.3, 1.5, 1.9, 2.5, 4.0])
def test_budget_converges_under_the_target_when_steps_stay_slower(factor: float) -> None:
    timed, _ = loaded(lambda step, count: noisy(step, count) * (factor if step >= 150 else 1.0), 400)
    assert np.percentile([seconds for _, seconds in timed.steps[250:]], 98) <= TARGET_S * (1.3 if factor == 4.0 else 1)
    fitting = (TARGET_S / factor - 0.01) / 0.0002
    assert np.mean([count for count, _ in timed.steps[250:]]) >= 0.65 * fitting, (
        "and no more is given up than is needed"
    )


def test_steps_that_get_fast_again_are_used_within_few_steps() -> None:
    timed, _ = loaded(lambda step, count: noisy(step, count) * (4.0 if 100 <= step < 150 else 1.0), 200)
    tokens = [count for count, _ in timed.steps]
    assert min(tokens[170:]) >= 0.8 * np.median(tokens[50:100])


def test_budget_leaves_room_for_all_that_run_whatever_steps_take() -> None:
    desk = Desk((60,))
    for index in range(6):
        desk.run(f"r{index}", range(20 * index, 20 * index + 9))
    inner, land = policy(initial_tokens=16, min_prefill_tokens=3)
    assert [land(6, 9.0) for _ in range(4)][-1] == 1
    limits = inner.step_limits(desk.view())
    assert (limits.max_num_seqs, limits.max_prefill_tokens) == (6, 3)


def test_equal_step_times_give_equal_budgets() -> None:
    def budgets() -> list[int]:
        _, land = policy()
        return [land(20 + step % 90, noisy(step, 20 + step % 90)) for step in range(200)]

    assert budgets() == budgets()


def test_step_time_is_a_line_through_what_was_seen() -> None:
    model = StepTime()
    assert (model.predict(100), model.error(0.99)) == (0.0, 0.0)
    for step in range(50):
        model.observe(10 + step, 0.5 + 0.01 * (10 + step))
    assert model.per_token_s == pytest.approx(0.01)
    assert model.fixed_s == pytest.approx(0.5)
    assert model.predict(100) == pytest.approx(1.5)
    assert model.num_tokens_within(1.5) == pytest.approx(100)
    assert model.num_tokens_within(0.4) == 0.0


def test_step_time_of_equal_steps_is_all_fixed() -> None:
    model = StepTime()
    for _ in range(5):
        model.observe(64, 0.1)
    assert model.per_token_s == 0.0
    assert model.fixed_s == pytest.approx(0.1)
    assert model.num_tokens_within(0.2) == float("inf")


def test_step_time_equals_weighted_least_squares() -> None:
    rng = np.random.default_rng(0)
    tokens, noise = rng.integers(1, 500, 300), rng.normal(0, 0.01, 300)
    seconds = 0.03 + 0.001 * tokens + noise
    model = StepTime()
    for count, duration_s in zip(tokens, seconds, strict=True):
        model.observe(int(count), float(duration_s))
    weights = 0.995 ** np.arange(299, -1, -1)
    slope, intercept = np.polyfit(tokens, seconds, 1, w=np.sqrt(weights))
    assert model.per_token_s == pytest.approx(slope, rel=1e-6)
    assert model.fixed_s == pytest.approx(intercept, rel=1e-6)


def test_limits_of_the_shared_settings_hold_as_well() -> None:
    scheduler = build("slo_adaptive", LIMITS, max_prefill_tokens=5, max_chunk_tokens=3)
    harness = EngineHarness(scheduler=lambda context: scheduler, budget=64)
    harness.run(*[harness.request(f"r{index}", range(20 * index, 20 * index + 12), 2) for index in range(4)])
    for plan in harness.executor.plans:
        prompts = [row.num_scheduled_tokens for row in plan.rows if row.num_scheduled_tokens > 1]
        assert sum(prompts) <= 5
        assert max(prompts, default=0) <= 3
