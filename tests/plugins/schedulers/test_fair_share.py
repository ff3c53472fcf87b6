"""fair_share: tenants get equal service, or what their weights say, within the bound that VTC proves."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.schedulers.scheduling import ask, first_steps, harness_with
from tokenloom.interfaces.scheduler import SchedulerView
from tokenloom.interfaces.scheduler_events import (
    RequestAdmitted,
    RequestArrived,
    RequestFinished,
    RequestPreempted,
    StepLanded,
)
from tokenloom.request import FinishReason, Request, RequestStatus, RequestView
from tokenloom.testing.engine_harness import ChosenDrafts, EngineHarness, oracle_drafts
from tokenloom.testing.footprint import footprint_bytes
from tokenloom.testing.random_tests import RANDOM
from tokenloom.testing.stub_model import stub_request
from tokenloom_schedulers.virtual_counters import VirtualCounters

LONG = 8
"""Prompts with more tokens than this are long; a short request stays short, its output included."""


def fair(weights: dict[str, float] | None = None, **engine: object) -> EngineHarness:
    return harness_with("fair_share", {"weights": weights or {}}, **engine)


@dataclass(frozen=True)
class Shape:
    """What the requests of one tenant look like: at most so many prompt and output tokens."""

    num_prompt: int
    num_output: int


@dataclass
class Watched:
    """Service of tenants that never run out of requests.

    Attributes:
        history: of each tenant after each step. A prompt counts when its request is admitted.
        most_to_come: most output that requests of one tenant which ran at once had still to yield.
    """

    history: list[dict[str, float]] = field(default_factory=list)
    most_to_come: int = 0

    def gaps(self, first: str, second: str) -> list[float]:
        """Service of one less that of the other: in the beginning, and after each step."""
        return [0.0, *[step.get(first, 0.0) - step.get(second, 0.0) for step in self.history]]


def watch(
    harness: EngineHarness, names: list[str], num_steps: int, costs: tuple[float, float] = (1.0, 2.0), short: int = 999
) -> Watched:
    """Steps, while each tenant has requests of at most `short` tokens that wait, from which `costs` count service."""
    watched, total, admitted = Watched(), dict[str, float](), set[str]()
    for _ in range(num_steps):
        before = {request.request_id: request.num_output_tokens for request in harness.requests.values()}
        harness.step()
        to_come = dict.fromkeys(names, 0)
        for request in harness.requests.values():
            if request.request_id not in admitted and request.first_scheduled_time_s is not None:
                admitted.add(request.request_id)
                num_input = request.num_prompt_tokens - request.num_cached_tokens
                total[request.tenant] = total.get(request.tenant, 0.0) + costs[0] * num_input
            num_emitted = request.num_output_tokens - before[request.request_id]
            if num_emitted or request.status is RequestStatus.RUNNING:
                total[request.tenant] += costs[1] * num_emitted
                num_left = 0 if request.is_finished else request.max_total_tokens - request.num_tokens
                to_come[request.tenant] += num_emitted + num_left
        waiting = [
            r for r in harness.requests.values() if r.status not in (RequestStatus.RUNNING, RequestStatus.FINISHED)
        ]
        assert {r.tenant for r in waiting if r.num_tokens <= short} == set(names), "every tenant is backlogged"
        watched.history.append(dict(total))
        watched.most_to_come = max(watched.most_to_come, *to_come.values())
    return watched


def backlog(harness: EngineHarness, name: str, shape: Shape, count: int, seed: int) -> None:
    rng = random.Random(f"{name} {seed}")
    for index in range(count):
        num_prompt, num_output = rng.randint(1, shape.num_prompt), rng.randint(1, shape.num_output)
        ask(harness, f"{name}{index}", num_prompt, num_output, tenant=name)


def mixed_backlog(harness: EngineHarness, name: str, shape: Shape, share: float, seed: int) -> None:
    """Short requests, and between them a share of others with long prompts."""
    rng = random.Random(f"{name} {seed}")
    for index in range(300):
        num_prompt, num_output = rng.randint(1, LONG // 2), rng.randint(1, 2)
        if index < 100 and rng.random() < share:
            num_prompt, num_output = rng.randint(LONG + 1, LONG + shape.num_prompt), rng.randint(1, shape.num_output)
        ask(harness, f"{name}{index}", num_prompt, num_output, tenant=name)


shapes = st.builds(Shape, st.integers(1, 20), st.integers(1, 20))
costs = st.sampled_from([(1.0, 2.0), (1.0, 1.0), (4.0, 1.0)])
limits = st.fixed_dictionaries(
    {},
    optional={
        "max_chunk_tokens": st.integers(1, 6),
        "max_prefill_tokens": st.integers(1, 9),
        "max_num_partial_prefills": st.integers(1, 3),
    },
)


def engines(least_blocks: int) -> st.SearchStrategy[dict[str, object]]:
    """Engines short of memory, from one whose blocks the longest request fills."""
    return st.fixed_dictionaries(
        {
            "max_num_seqs": st.integers(1, 9),
            "num_blocks": st.integers(least_blocks, least_blocks + 20).map(lambda count: (count,)),
            "budget": st.integers(4, 40),
            "preempt_mode": st.sampled_from(["recompute", "swap"]),
            "partial_preemption": st.booleans(),
            "host_memory_bytes": st.just(10**9),
            "checks": st.just("off"),
        }
    )


def engine_with_drafts(settings: dict[str, object], num_drafts: int, engine: dict[str, object]) -> EngineHarness:
    return harness_with(
        "fair_share",
        settings,
        draft_policy=ChosenDrafts(lambda *_: num_drafts) if num_drafts else None,
        drafts=lambda model: oracle_drafts(model, lambda _, length: length % (num_drafts + 1)),
        **engine,
    )


def check_gaps(harness: EngineHarness, num_steps: int, costs: tuple[float, float], short: int = 999) -> None:
    """In every interval of a few steps, two tenants' services differ by no more than the docstring states."""
    watched = watch(harness, ["a", "b"], num_steps, costs, short)
    longest = max(request.num_prompt_tokens for request in harness.requests.values())
    bound = 2 * (costs[0] * longest + costs[1] * watched.most_to_come)
    gaps = watched.gaps("a", "b")
    assert max(gaps) - min(gaps) <= bound, f"{gaps} exceed {bound}"


@RANDOM
@given(
    first=shapes,
    second=shapes,
    seed=st.integers(0, 99),
    costs=costs,
    limits=limits,
    num_drafts=st.sampled_from([0, 3]),
    engine=engines(11),
)
def test_service_of_backlogged_tenants_differs_by_no_more_than_the_bound(
    first: Shape,
    second: Shape,
    seed: int,
    costs: tuple[float, float],
    limits: dict[str, object],
    num_drafts: int,
    engine: dict[str, object],
) -> None:
    """In every interval, whatever their requests look like, with chunks, drafts and preemptions of every kind."""
    settings = {"input_cost": costs[0], "output_cost": costs[1], **limits}
    harness = engine_with_drafts(settings, num_drafts, engine)
    backlog(harness, "a", first, 100, seed)
    backlog(harness, "b", second, 100, seed)
    check_gaps(harness, 14, costs)


@RANDOM
@given(
    shares=st.tuples(*[st.sampled_from([0.0, 0.3, 0.9])] * 2),
    shape=st.builds(Shape, st.integers(1, 80), st.integers(1, 20)),
    seed=st.integers(0, 99),
    most_long=st.integers(1, 2),
    limits=limits,
    num_drafts=st.sampled_from([0, 3]),
    engine=engines(28),
)
def test_prompts_held_back_for_their_length_leave_the_bound_in_place(
    shares: tuple[float, float],
    shape: Shape,
    seed: int,
    most_long: int,
    limits: dict[str, object],
    num_drafts: int,
    engine: dict[str, object],
) -> None:
    """Short ones of the same tenant go instead, and whoever overtakes the first of its tenant is counted."""
    settings = {"max_long_partial_prefills": most_long, "long_prefill_token_threshold": LONG, **limits}
    harness = engine_with_drafts(settings, num_drafts, engine)
    for name, share in zip("ab", shares, strict=True):
        mixed_backlog(harness, name, shape, share, seed)
    check_gaps(harness, 30, (1.0, 2.0), LONG)


def test_whoever_overtakes_a_prompt_that_is_held_back_pays_for_it() -> None:
    """One tenant's long prompt keeps its next one waiting at the head of its queue, and short ones pass that."""
    settings = {"max_long_partial_prefills": 1, "long_prefill_token_threshold": LONG, "max_chunk_tokens": 2}
    harness = harness_with("fair_share", settings, max_num_seqs=10, budget=20)
    for index in range(2):
        ask(harness, f"long{index}", 120, 1, tenant="a")
    for name in "ab":
        backlog(harness, name, Shape(2, 1), 400, 1)
    check_gaps(harness, 50, (1.0, 2.0), LONG)
    assert len([name for name in first_steps(harness) if name.startswith("long")]) == 1


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
    last = watch(harness, ["a", "b"], 150).history[-1]
    assert last["a"] / last["b"] == pytest.approx(share, rel=0.1)


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


def test_order_needs_no_look_at_the_queue() -> None:
    """Whatever waits, a step reads no more of it than it admits."""
    harness = fair(max_num_seqs=2)
    for index in range(300):
        ask(harness, f"r{index}", 4, 2, tenant=f"tenant{index % 3}")
    policy = harness.scheduler._policy  # type: ignore[attr-defined]
    for _ in range(20):
        harness.step()
        book = harness.engine._book
        view = SchedulerView(0, 0.0, Unread(book.waiting), book.running, harness.engine._parts.limits)
        assert next(iter(policy.order(view.waiting, view))).tenant in {"tenant0", "tenant1", "tenant2"}


@final
class Unread(Sequence[RequestView]):
    """Waiting requests that may be counted only."""

    def __init__(self, requests: Sequence[RequestView]) -> None:
        self._count = len(requests)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError(f"request {index} is looked at")


def told(counters: VirtualCounters, request: Request, *events: type) -> None:
    """Tells of events in which only the request matters, with the state that the engine gives it."""
    for event in events:
        if event is RequestAdmitted:
            request.status = RequestStatus.RUNNING
        if event is RequestPreempted and request.status is RequestStatus.RUNNING:
            request.status = RequestStatus.PREEMPTED
            request.num_preemptions += 1
        if event is RequestFinished:
            counters.observe(RequestFinished(0.0, request, FinishReason.STOP))
        else:
            counters.observe(event(0.0, request))


def landed(*names: str) -> StepLanded:
    return StepLanded(0.0, 0, 0.0, 3, dict.fromkeys(names, 1))


def test_prompt_of_a_preempted_request_is_counted_once() -> None:
    counters = VirtualCounters(1.0, 2.0, {})
    request = stub_request("r", [1, 2, 3], tenant="a")
    told(counters, request, RequestArrived)
    for _ in range(3):
        told(counters, request, RequestAdmitted)
        counters.observe(landed("r"))
        told(counters, request, RequestPreempted, RequestPreempted)
    assert counters.counter("a") == 3.0 + 3 * 2.0


@pytest.mark.parametrize("tenant", ["", "a"])
def test_whoever_overtakes_the_first_of_its_tenant_is_counted(tenant: str) -> None:
    counters = VirtualCounters(1.0, 2.0, {tenant: 0.5})
    first, second, third = (stub_request(f"r{index}", [1, 2, 3], tenant=tenant) for index in range(3))
    for request in (first, second, third):
        told(counters, request, RequestArrived)
    told(counters, third, RequestAdmitted)
    assert counters.counter(tenant) == 6.0
    second.num_cached_tokens = 2
    told(counters, second, RequestAdmitted, RequestFinished)
    counters.observe(landed("r1", "r2"))
    assert counters.counter(tenant) == 6.0 + 2.0 + 8.0
    told(counters, first, RequestFinished)
    assert counters.counter(tenant) == 16.0, "it was never served"


def test_counters_of_tenants_that_left_do_not_pile_up() -> None:
    counters = VirtualCounters(1.0, 2.0, {})
    sizes = []
    for index in range(4_000):
        request = stub_request(f"r{index}", [1, 2, 3], tenant=f"tenant{index}", arrival_time_s=float(index))
        told(counters, request, RequestArrived, RequestAdmitted)
        counters.observe(landed(request.request_id))
        told(counters, request, RequestFinished)
        if index % 100 == 99:
            sizes.append(footprint_bytes(counters))
    assert max(sizes[20:]) <= max(sizes[:20]), sizes
