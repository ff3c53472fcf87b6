"""The adaptive policy: how many drafts pay, in theory and in a loop of steps with known acceptance and costs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from pydantic import ValidationError

from tokenloom.clock import VirtualClock
from tokenloom.compose import compose_config
from tokenloom.engine_builder import build_engine
from tokenloom.engine_output import EngineStats
from tokenloom.interfaces.draft_policy import DraftPolicyContext, DraftStep, VerifiedDrafts
from tokenloom.request import Request
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.draft_policy_suite import SeenRequest
from tokenloom_spec_decode.adaptive_policy import (
    AcceptanceRates,
    AdaptivePolicy,
    AdaptivePolicyConfig,
    Rates,
    best_length,
)


def _policy(**values: float) -> AdaptivePolicy:
    return AdaptivePolicyConfig.model_validate(values).build(DraftPolicyContext(64, 512))


@dataclass(frozen=True)
class _World:
    """Requests whose drafts are right at a rate, and what steps cost in plain steps.

    Attributes:
        num_rows: requests, all of them always there.
        rate: (request, step) -> how often a draft is right if those before it are.
        price: what one draft for each request costs.
        noise: durations vary by this share.
        proposes: (request, step) -> whether the drafter finds anything.
    """

    num_rows: int
    rate: Callable[[int, int], float]
    price: float
    noise: float = 0.0
    proposes: Callable[[int, int], bool] = lambda request, step: True

    def play(self, policy: AdaptivePolicy, num_steps: int, seed: int = 0) -> tuple[float, list[int]]:
        """Steps; returns tokens per plain step, over what it would be without drafts, and the drafts of each step."""
        chance = random.Random(seed)
        pending, num_tokens, time, drafted = [0] * self.num_rows, 0, 0.0, list[int]()
        for step in range(num_steps):
            asked = [policy.num_drafts(SeenRequest(f"r{i}", 5, step), self.num_rows) for i in range(self.num_rows)]
            verified = []
            for request, count in enumerate(pending):
                rate, accepted = self.rate(request, step), 0
                while accepted < count and chance.random() < rate:
                    accepted += 1
                num_tokens += accepted + 1
                if count:
                    verified.append(VerifiedDrafts(f"r{request}", count, accepted, count))
            drafted.append(sum(pending))
            duration = 1.0 + self.price * drafted[-1] / self.num_rows
            time += duration
            pending = [count if self.proposes(i, step) else 0 for i, count in enumerate(asked)]
            heard = duration * (1.0 + self.noise * (2 * chance.random() - 1))
            policy.observe_step(DraftStep(verified, heard, self.num_rows, self.num_rows, sum(pending), 0.0))
        return num_tokens / self.num_rows / time, drafted


@pytest.mark.parametrize(
    ("rate", "price", "expected"),
    [
        (0.0, 0.05, 0),
        (0.04, 0.05, 0),
        (0.5, 0.6, 0),
        (0.5, 0.3, 1),
        (0.7, 0.2, 3),
        (0.8, 0.05, 8),
        (0.95, 0.05, 8),
        (1.0, 0.9, 8),
        (1.0, 1.0, 0),
        (0.5, 0.0, 8),
    ],
)
def test_the_best_length_is_that_of_the_formula(rate: float, price: float, expected: int) -> None:
    def speed(count: int) -> float:
        return sum(rate**depth for depth in range(count + 1)) / (1.0 + price * count)

    found = best_length(Rates(rate, rate), price, 1.0, 8, 0.02)
    assert found == expected
    best = max(range(9), key=speed)
    assert found == (best if speed(best) > 1.02 else 0)


def test_drafts_of_a_tree_reach_less_far() -> None:
    low, high = Rates(0.3, 0.3), Rates(0.9, 0.9)
    assert best_length(low, 0.1, 1.0, 16, 0.02) == 1
    assert best_length(low, 0.1, 0.25, 16, 0.02) == 0
    assert best_length(high, 0.1, 0.25, 64, 0.02) > best_length(high, 0.1, 1.0, 64, 0.02), "more, to get as far"


def test_a_sure_continuation_of_an_unsure_start_is_drafted_to_its_end() -> None:
    assert best_length(Rates(0.3, 0.95), 0.1, 1.0, 8, 0.02) == 8
    assert best_length(Rates(0.3, 0.1), 0.1, 1.0, 8, 0.02) == 1
    assert best_length(Rates(0.05, 0.95), 0.1, 1.0, 4, 0.02) == 0


def test_rates_start_from_what_all_have_shown_and_become_a_requests_own() -> None:
    rates = AcceptanceRates(8)
    assert rates.of("new") == Rates(0.5, 0.5)
    for _ in range(30):
        rates.observe([VerifiedDrafts("good", 4, 4, 4), VerifiedDrafts("bad", 4, 0, 4)])
    assert rates.of("good").first > 0.8
    assert rates.of("good").later > 0.9
    assert rates.of("bad").first < 0.4 < rates.of("new").first < 0.6
    assert rates.of("bad").later == rates.of("new").later, "it never had a second draft to judge"
    rates.forget("bad")
    assert rates.of("bad") == rates.of("new")


def test_a_tree_counts_by_depth() -> None:
    rates = AcceptanceRates(8)
    for _ in range(200):
        rates.observe([VerifiedDrafts("r", 12, 3, 3)])
    assert rates.of("r").first > 0.97
    assert rates.of("r").later > 0.97
    assert rates.depth_share == pytest.approx(0.25, abs=0.01)


def test_rates_of_few_requests_are_kept() -> None:
    rates = AcceptanceRates(3)
    for number in range(50):
        rates.observe([VerifiedDrafts(f"r{number}", 1, 1, 1)])
    rates.observe([VerifiedDrafts("r48", 4, 0, 4)])
    rates.observe([VerifiedDrafts("last", 1, 1, 1)])
    assert rates.of("r47") == rates.of("never_seen"), "it drafted longest ago"
    assert rates.of("r48").first < rates.of("r49").first


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("num_rows", [1, 8, 64])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.4, 0.7, 0.95])
@pytest.mark.parametrize("price", [0.02, 0.2, 1.0])
def test_it_is_never_much_slower_than_no_drafts_and_mostly_as_fast_as_the_best(
    num_rows: int, rate: float, price: float, noise: float
) -> None:
    world = _World(num_rows, lambda request, step: rate, price, noise)
    speed, _ = world.play(_policy(), 400)
    best = max(sum(rate**depth for depth in range(count + 1)) / (1.0 + price * count) for count in range(9))
    assert speed > 0.97
    # What it misses is the time to find out, and a length beside the best one.
    assert speed > 0.85 * best


def test_it_switches_off_where_nothing_is_accepted_and_tries_again_now_and_then() -> None:
    _, drafted = _World(8, lambda request, step: 0.0, 0.8).play(_policy(), 2000)
    tried = [step for step, count in enumerate(drafted) if count]
    assert 2 <= len([step for step in tried if step >= 200]) <= 8
    assert all(drafted[step] == 8 for step in tried if step >= 200), "one draft for each, all in one step"


def test_it_notices_when_drafts_become_right() -> None:
    world = _World(1, lambda request, step: 0.0 if step < 300 else 0.95, 0.1)
    _, drafted = world.play(_policy(), 600)
    assert sum(drafted[200:300]) <= 20
    assert sum(drafted[500:]) >= 600


def test_each_request_drafts_as_its_own_drafts_are_accepted() -> None:
    world = _World(8, lambda request, step: 0.95 if request % 2 else 0.02, 0.3)
    policy = _policy()
    world.play(policy, 300)
    counts = [policy.num_drafts(SeenRequest(f"r{i}", 5, 300), 8) for i in range(8)]
    assert all(counts[i] == 0 for i in (0, 2, 4, 6))
    assert all(counts[i] >= 4 for i in (1, 3, 5, 7))


def test_length_follows_the_batch_size() -> None:
    policy = _policy()
    for num_rows, price in ((1, 0.05), (32, 0.9)):
        _World(num_rows, lambda request, step: 0.7, price).play(policy, 200)
    assert policy.num_drafts(SeenRequest("r0", 5, 1), 1) >= 4
    assert policy.num_drafts(SeenRequest("r0", 5, 1), 32) == 0


def test_a_silent_drafter_is_asked_until_it_finds_something() -> None:
    world = _World(1, lambda request, step: 0.9, 0.2, proposes=lambda request, step: step >= 500)
    policy = _policy()
    # Bad luck first, so that it is off.
    for _ in range(40):
        policy.observe_step(DraftStep([VerifiedDrafts("r0", 4, 0, 4)], 1.8, 1, 1, 0, 0.0))
    speed, drafted = world.play(policy, 600)
    assert sum(drafted[:500]) == 0
    assert sum(drafted[500:520]) > 0
    assert speed > 1.0


def test_looking_in_vain_is_paid_for_like_drafts() -> None:
    """Each ask takes 3 % of a step and finds nothing: it is left off, but for the share of the time that is allowed."""
    policy, asked = _policy(), 0
    for step in range(2000):
        looks = policy.num_drafts(SeenRequest("r", 5, step), 1) > 0
        asked += looks
        policy.observe_step(DraftStep([], 1.03 if looks else 1.0, 1, 1, 0, 0.03 if looks else 0.0))
    assert 10 < asked < 1300


def test_probes_that_find_too_little_to_measure_are_no_more_frequent() -> None:
    """Of 16 requests two get a draft, never right, and asking takes half a step."""
    policy, pending, num_asked = _policy(), 0, 0
    for step in range(3000):
        asks = any(policy.num_drafts(SeenRequest(f"r{i}", 5, step), 16) for i in range(16))
        num_asked += asks and step >= 300
        verified = [VerifiedDrafts(f"r{i}", 1, 0, 1) for i in range(pending)]
        draft_s = 0.5 if asks else 0.0
        policy.observe_step(DraftStep(verified, 1.0 + 0.1 * pending + draft_s, 16, 16, 2 * asks, draft_s))
        pending = 2 * asks
    assert 1 <= num_asked <= 40


def test_a_drafter_that_keeps_its_own_kv_is_not_left_off_for_that() -> None:
    """It takes 8 % of each step, drafts or none. When the text turns predictable, drafts are back soon."""
    policy, pending, num_good = _policy(), 0, 0
    for step in range(2400):
        asked = policy.num_drafts(SeenRequest("r", 5, step), 1)
        verified = [VerifiedDrafts("r", pending, 0 if step < 2000 else pending, pending)] if pending else []
        draft_s = 0.08 + 0.03 * asked
        policy.observe_step(DraftStep(verified, 1.0 + 0.05 * pending + draft_s, 1, 1, asked, draft_s))
        pending = asked
        num_good += step >= 2000 and asked > 1
    assert num_good > 50


@pytest.mark.parametrize("jump", [0.0, 0.25])
def test_a_step_that_jumps_with_its_first_draft_is_noticed(jump: float) -> None:
    """Of 16 requests one drafts, and is right: the price of a probe's many drafts says little of the first one's."""
    policy, pending, time, tokens, chance = _policy(), [0] * 16, 0.0, 0, random.Random(1)
    for step in range(1500):
        asked = [policy.num_drafts(SeenRequest(f"r{i}", 5, step), 16) for i in range(16)]
        verified = [VerifiedDrafts(f"r{i}", n, n if i == 0 else 0, n) for i, n in enumerate(pending) if n]
        duration = 1.0 + 0.02 * sum(pending) + (jump if verified else 0.0)
        duration *= 1.0 + 0.02 * chance.random()
        time += duration
        tokens += 16 + sum(drafts.num_accepted_tokens for drafts in verified)
        pending = asked
        policy.observe_step(DraftStep(verified, duration, 16, 16, sum(pending), 0.0))
    speed = tokens / 16 / (time / 1.01)
    assert speed > (0.97 if jump else 1.1)


def test_no_more_drafts_than_configured() -> None:
    world = _World(2, lambda request, step: 1.0, 0.0)
    _, drafted = world.play(_policy(max_draft_tokens=3), 100)
    assert max(drafted) == 6


@pytest.mark.parametrize("values", [{"max_draft_tokens": 0}, {"max_draft_tokens": 65}, {"min_gain": -0.1}])
def test_config_refuses(values: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        AdaptivePolicyConfig.model_validate(values)


def _simulate(num_rows: int, *overrides: str) -> tuple[float, EngineStats]:
    clock = VirtualClock()
    words = ["executor=simulated", f"scheduler.max_num_seqs={num_rows}", *overrides]
    engine = build_engine(compose_config(words).engine, clock=clock)
    for number in range(2 * num_rows):
        params = SamplingParams(max_tokens=100, ignore_eos=True)
        engine.add_request(Request(f"r{number}", list(range(20)), params, seed=number, max_total_tokens=120))
    while engine.has_work():
        engine.step()
    return clock.now(), engine.stats


@pytest.mark.parametrize(("num_rows", "acceptance"), [(1, 0.0), (1, 0.8), (8, 0.3), (32, 0.0)])
def test_the_simulator_runs_the_same_policy(num_rows: int, acceptance: float) -> None:
    device = ("executor.device=cpu_2core_135m",)
    drafting = (*device, "spec_decode=synthetic", f"spec_decode.acceptance=[{acceptance}]")
    plain_s, _ = _simulate(num_rows, *device)
    adaptive_s, stats = _simulate(num_rows, *drafting, "spec_decode.policy=adaptive")
    assert stats.num_draft_tokens > 0
    assert plain_s / adaptive_s > 0.97
    fixed_s, _ = _simulate(num_rows, *drafting, "spec_decode.policy.num_draft_tokens=4")
    assert adaptive_s < fixed_s / (1.3 if acceptance < 0.5 and num_rows > 1 else 0.95)
    assert _simulate(num_rows, *drafting, "spec_decode.policy=adaptive")[0] == adaptive_s
