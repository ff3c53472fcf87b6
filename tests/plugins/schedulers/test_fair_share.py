"""fair_share: tenants get equal service, or what their weights say, within the bound that VTC proves."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.schedulers.scheduling import ask, first_steps, harness_with
from tokenloom.interfaces.scheduler_events import StepLanded
from tokenloom.request import RequestStatus
from tokenloom.testing.engine_harness import EngineHarness
from tokenloom.testing.footprint import footprint_bytes
from tokenloom.testing.random_tests import RANDOM
from tokenloom.testing.stub_model import stub_request
from tokenloom_schedulers.virtual_counters import VirtualCounters

OUTPUT_COST = 2.0


def fair(weights: dict[str, float] | None = None, **engine: object) -> EngineHarness:
    return harness_with("fair_share", {"weights": weights or {}}, **engine)


@dataclass(frozen=True)
class Shape:
    """What the requests of one tenant look like: at most so many prompt and output tokens."""

    num_prompt: int
    num_output: int


def service_by_step(harness: EngineHarness, names: list[str], num_steps: int) -> list[dict[str, float]]:
    """Service of tenants that never run out of requests, after each step. A prompt counts when it is admitted."""
    total: dict[str, float] = defaultdict(float)
    history, admitted = [], set[str]()
    for _ in range(num_steps):
        before = {request.request_id: request.num_output_tokens for request in harness.requests.values()}
        harness.step()
        for request in harness.requests.values():
            if request.request_id not in admitted and request.first_scheduled_time_s is not None:
                admitted.add(request.request_id)
                total[request.tenant] += request.num_prompt_tokens - request.num_cached_tokens
            total[request.tenant] += OUTPUT_COST * (request.num_output_tokens - before[request.request_id])
        waiting = {r.tenant for r in harness.requests.values() if r.status is RequestStatus.WAITING}
        assert waiting == set(names), "every tenant is backlogged"
        history.append(dict(total))
    return history


def backlog(harness: EngineHarness, name: str, shape: Shape, count: int, seed: int) -> None:
    rng = random.Random(f"{name} {seed}")
    for index in range(count):
        num_prompt, num_output = rng.randint(1, shape.num_prompt), rng.randint(1, shape.num_output)
        ask(harness, f"{name}{index}", num_prompt, num_output, tenant=name)


shapes = st.builds(Shape, st.integers(1, 20), st.integers(1, 20))


@RANDOM
@given(
    first=shapes,
    second=shapes,
    seed=st.integers(0, 99),
    max_num_seqs=st.integers(1, 6),
    num_blocks=st.integers(11, 40),
    budget=st.integers(4, 40),
)
def test_service_of_backlogged_tenants_differs_by_no_more_than_the_bound(
    first: Shape, second: Shape, seed: int, max_num_seqs: int, num_blocks: int, budget: int
) -> None:
    """In every interval, whatever their requests look like, preemptions included."""
    harness = fair(max_num_seqs=max_num_seqs, num_blocks=(num_blocks,), budget=budget, checks="off")
    backlog(harness, "a", first, 80, seed)
    backlog(harness, "b", second, 80, seed)
    history = service_by_step(harness, ["a", "b"], 12)
    longest = max(first.num_prompt, second.num_prompt)
    most_running = min((num_blocks - 1) * 4, max_num_seqs * max(s.num_prompt + s.num_output for s in (first, second)))
    bound = 2 * max(longest, OUTPUT_COST * most_running)
    gaps = [0.0, *[step.get("a", 0.0) - step.get("b", 0.0) for step in history]]
    assert max(gaps) - min(gaps) <= bound, f"{gaps} exceed {bound}"


def test_light_tenant_gets_its_share_beside_a_flood() -> None:
    """First come, first served would let it wait for all 60."""
    harness = fair(max_num_seqs=2)
    for index in range(60):
        ask(harness, f"flood{index}", 8, 8, tenant="flood")
    for _ in range(20):
        harness.step()
    light = [ask(harness, f"light{index}", 8, 8, tenant="light") for index in range(3)]
    for _ in range(16):
        harness.step()
    assert [request.num_output_tokens > 0 for request in light] == [True, True, False]
    harness.run()


@pytest.mark.parametrize(("weights", "share"), [({}, 1.0), ({"a": 3.0}, 3.0), ({"a": 0.5, "b": 2.0}, 0.25)])
def test_shares_follow_the_weights(weights: dict[str, float], share: float) -> None:
    harness = fair(weights, max_num_seqs=2)
    for name in "ab":
        backlog(harness, name, Shape(6, 6), 150, 1)
    history = service_by_step(harness, ["a", "b"], 150)
    assert history[-1]["a"] / history[-1]["b"] == pytest.approx(share, rel=0.1)


def test_tenants_share_by_tokens_and_not_by_requests() -> None:
    """One's requests are eight times as large, so it gets to run an eighth of them."""
    harness = fair(max_num_seqs=1)
    for index in range(40):
        ask(harness, f"large{index}", 16, 16, tenant="large")
    for index in range(160):
        ask(harness, f"small{index}", 2, 2, tenant="small")
    for _ in range(200):
        harness.step()
    started = list(first_steps(harness))
    num_large = sum(name.startswith("large") for name in started)
    assert (len(started) - num_large) / num_large == pytest.approx(8, rel=0.2)


def test_time_without_requests_is_no_credit() -> None:
    """A tenant that was away for long does not push the other one aside when it is back."""
    harness = fair(max_num_seqs=1)
    for index in range(60):
        ask(harness, f"busy{index}", 4, 4, tenant="busy")
    for _ in range(80):
        harness.step()
    for index in range(60):
        ask(harness, f"back{index}", 4, 4, tenant="back")
    num_before = len(first_steps(harness))
    for _ in range(40):
        harness.step()
    started = [name[:4] for name in first_steps(harness)][num_before:]
    assert abs(started.count("back") - started.count("busy")) <= 1, started


def test_tenant_that_always_has_something_running_gains_no_credit_by_it() -> None:
    """A request that runs for long makes a tenant no member of the queue: its next ones start at the level there."""
    harness = fair(max_num_seqs=2)
    ask(harness, "background", 2, 100, tenant="back")
    harness.step()
    for index in range(60):
        ask(harness, f"busy{index}", 20, 2, tenant="busy")
    for _ in range(60):
        harness.step()
    for index in range(30):
        ask(harness, f"back{index}", 20, 2, tenant="back")
    num_before = len(first_steps(harness))
    for _ in range(16):
        harness.step()
    started = [name[:4] for name in first_steps(harness)][num_before:]
    assert started.count("busy") >= 3, started


def test_requests_of_one_tenant_keep_their_order() -> None:
    harness = fair(max_num_seqs=2)
    for index in range(8):
        ask(harness, f"r{index}", 20 - 2 * index, 3, tenant="only")
    harness.run()
    assert list(first_steps(harness)) == [f"r{index}" for index in range(8)]


def test_prompt_tokens_from_the_cache_cost_nothing() -> None:
    harness = fair(max_num_seqs=1, num_blocks=(100,))
    shared = range(40)
    harness.run(harness.request("warm", shared, 1))
    for index in range(40):
        hit = harness.request(f"hit{index}", [*shared, 900 + index], 1)
        hit.tenant = "hit"
        harness.add(hit)
        ask(harness, f"miss{index}", 41, 1, tenant="miss")
    for _ in range(30):
        harness.step()
    started = [name for name in first_steps(harness) if name != "warm"]
    num_hits = sum(name.startswith("hit") for name in started)
    assert num_hits > 5 * (len(started) - num_hits), started


def test_prompt_of_a_preempted_request_is_counted_once() -> None:
    counters = VirtualCounters(lambda request: 3.0, lambda tenant: 2.0)
    request = stub_request("r", [1, 2, 3], tenant="a")
    counters.arrive(request)
    for step in range(3):
        request.status, request.num_computed_tokens = RequestStatus.RUNNING, 3
        counters.land(StepLanded(0.0, step, 0.0, 3, {"r": 1}))
        request.status, request.num_computed_tokens = RequestStatus.PREEMPTED, 0
        request.num_preemptions += 1
        counters.come_back(request)
    assert counters.counter("a") == 3.0 + 3 * 2.0


def test_counters_of_tenants_that_left_do_not_pile_up() -> None:
    counters = VirtualCounters(lambda request: 3.0, lambda tenant: 2.0)
    sizes = []
    for index in range(4_000):
        request = stub_request(f"r{index}", [1, 2, 3], tenant=f"tenant{index}", arrival_time_s=float(index))
        counters.arrive(request)
        request.status, request.num_computed_tokens = RequestStatus.RUNNING, 3
        counters.land(StepLanded(0.0, index, 0.0, 3, {request.request_id: 1}))
        request.status = RequestStatus.FINISHED
        counters.end(request)
        if index % 100 == 99:
            sizes.append(footprint_bytes(counters))
    assert max(sizes[20:]) <= max(sizes[:20]), sizes
