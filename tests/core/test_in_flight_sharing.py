"""Requests that arrive together and share a prefix compute it once: the others wait for it, step by step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import pytest

from tokenloom.batch import SchedulePlan
from tokenloom.interfaces.cache import CacheContext, PrefixCache
from tokenloom.interfaces.scheduler import Grant, Ledger, Scheduler, SchedulerContext, SchedulerView, Shortfall
from tokenloom.interfaces.scheduler_events import SchedulerEvent
from tokenloom.interfaces.scheduling_policy import SchedulingPolicy
from tokenloom.plugins import default_registry
from tokenloom.request import FinishReason, RequestView
from tokenloom.sampling_params import SamplingParams
from tokenloom.scheduling import PolicyScheduler, StepLedger, check_plan
from tokenloom.testing.desk import Desk
from tokenloom.testing.engine_harness import EngineHarness, build_fcfs
from tokenloom.testing.stub_model import full_group
from tokenloom.testing.suite import build_choice

GROUPS = {
    "full": (full_group(),),
    "window": (full_group(), full_group(1, window=20)),
    "drafter": (full_group(), full_group(1, lookahead=1, is_drafter=True)),
}


@final
class PreemptInPrefill(Scheduler):
    """Preempts r0 once it has so many computed tokens, then lets another scheduler plan."""

    def __init__(self, inner: Scheduler, num_computed: int) -> None:
        self._inner = inner
        self._num_computed = num_computed

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        for request in view.running:
            if request.request_id == "r0" and request.num_computed_tokens == self._num_computed:
                ledger.preempt(request)
        return self._inner.schedule(view, ledger)

    def observe(self, event: SchedulerEvent) -> None:
        self._inner.observe(event)


@final
class Asked(SchedulingPolicy):
    """First come, first served; notes whom it was asked to admit."""

    def __init__(self, asked: list[str]) -> None:
        self._asked = asked

    def order(self, requests: Sequence[RequestView], view: SchedulerView) -> Iterable[RequestView]:
        return requests

    def admit(self, request: RequestView, view: SchedulerView, ledger: Ledger) -> bool:
        self._asked.append(request.request_id)
        return True

    def select_victim(
        self, request: RequestView, candidates: Sequence[RequestView], view: SchedulerView
    ) -> RequestView | None:
        return None


def cache_builder(name: str, **settings: object) -> Callable[[CacheContext], PrefixCache]:
    def build(context: CacheContext) -> PrefixCache:
        cache = build_choice(default_registry().get("cache", name).info, settings).build(context)
        assert isinstance(cache, PrefixCache)
        return cache

    return build


def sharing_harness(budget: int = 256, **options: object) -> EngineHarness:
    fields: dict[str, object] = {"num_blocks": (500,), "block_size": 16, "max_num_seqs": 64, "max_model_len": 2_048}
    return EngineHarness(budget=budget, **{**fields, **options})  # type: ignore[arg-type]


def add_sharers(harness: EngineHarness, count: int = 32, length: int = 1_024, own: int = 20, **fields: object) -> int:
    """Adds `count` requests that share `length` tokens; returns the tokens that have to be computed at least."""
    for i in range(count):
        prompt = [*range(length), *range(10_000 + 100 * i, 10_000 + 100 * i + own)]
        harness.add(harness.request(f"r{i}", prompt, 3, **fields))  # type: ignore[arg-type]
    # The last token of each output is never computed.
    return length + count * (own + 2)


@pytest.mark.parametrize("layout", sorted(GROUPS))
@pytest.mark.parametrize("cache", ["hash", "radix"])
@pytest.mark.parametrize("budget", [64, 250, 2_048])
def test_requests_that_arrive_together_compute_their_shared_prefix_once(layout: str, cache: str, budget: int) -> None:
    harness = sharing_harness(budget, groups=GROUPS[layout], cache=cache)
    least = add_sharers(harness)
    if layout == "drafter":
        # The last shared block of its group depends on the token that follows.
        least += 31 * 16
    harness.run()
    harness.check_truth()
    assert harness.engine.stats.num_computed_tokens <= 1.1 * least
    assert max(len(plan.rows) for plan in harness.executor.plans) > 1, "the followers run together"


def test_followers_wait_no_longer_than_the_prefix_takes() -> None:
    harness = sharing_harness(256)
    add_sharers(harness, count=4)
    firsts: dict[str, int] = {}
    while harness.engine.has_work():
        harness.step()
        for row in harness.executor.plans[-1].rows:
            firsts.setdefault(row.request_id, len(harness.executor.plans) - 1)
    assert firsts == {"r0": 0, "r1": 4, "r2": 4, "r3": 4}, "1,024 tokens take four steps of 256"


def test_sharing_in_flight_can_be_switched_off() -> None:
    harness = sharing_harness(256, cache=cache_builder("hash", share_in_flight=False))
    add_sharers(harness, count=3, length=128)
    harness.step()
    assert len(harness.executor.plans[0].rows) == 2, "148 tokens, and what the budget leaves"
    harness.run()
    harness.check_truth()


def test_requests_without_a_cache_do_not_wait() -> None:
    harness = sharing_harness(256, cache="none")
    add_sharers(harness, count=3, length=64)
    harness.step()
    assert len(harness.executor.plans[0].rows) == 3


def test_salts_keep_requests_apart() -> None:
    harness = sharing_harness(512)
    harness.add(*[harness.request(f"r{i}", range(100), 3, cache_salt=f"tenant{i}") for i in range(3)])
    harness.step()
    assert [row.num_scheduled_tokens for row in harness.executor.plans[0].rows] == [100, 100, 100]
    harness.run()
    harness.check_truth()


def test_others_start_while_followers_wait() -> None:
    harness = sharing_harness(256)
    add_sharers(harness, count=8, length=128)
    harness.add(harness.request("other", range(50_000 - 40, 50_000), 3))
    harness.step()
    assert [row.request_id for row in harness.executor.plans[0].rows] == ["r0", "other"]
    harness.run()
    harness.check_truth()


def test_request_that_reads_no_cache_waits_for_nobody_and_can_be_followed() -> None:
    desk = Desk((40,))
    probed = desk.wait("probed", range(20))
    probed.params = SamplingParams(prompt_logprobs=1)
    first, third = desk.wait("first", range(20)), desk.wait("third", range(20))
    ledger = desk.ledger()
    assert isinstance(ledger.reserve(first, 20), Grant)
    assert isinstance(ledger.reserve(probed, 20), Grant)
    assert ledger.reserve(third, 20) == Shortfall("prefix", 16, 16)
    other = desk.ledger()
    other.reserve(probed, 20)
    assert other.reserve(third, 20) == Shortfall("prefix", 16, 16)


def test_follower_waits_only_while_the_owners_grant_holds_and_completes_its_next_block() -> None:
    desk = Desk((40,))
    owner, follower = desk.wait("owner", range(20)), desk.wait("follower", range(13))
    ledger = desk.ledger()
    start = ledger.savepoint()
    ledger.reserve(owner, 20)
    assert ledger.reserve(follower, 13) == Shortfall("prefix", 12, 12)
    ledger.rollback(start)
    assert isinstance(ledger.reserve(follower, 13), Grant), "nobody computes it any more"
    ledger.rollback(start)
    ledger.reserve(owner, 7)
    assert ledger.reserve(follower, 13) == Shortfall("prefix", 4, 4)
    ledger.rollback(start)
    ledger.reserve(owner, 3)
    assert isinstance(ledger.reserve(follower, 13), Grant), "waiting for a block that does not come is no use"


def test_request_served_before_the_owner_does_not_wait_and_a_preempted_owner_holds_nobody() -> None:
    desk = Desk((40,))
    owner = desk.run("owner", range(40), 8)
    follower = desk.wait("follower", range(30))
    ledger = desk.ledger()
    start = ledger.savepoint()
    assert isinstance(ledger.reserve(follower, 22), Grant), "the scheduler put it first"
    ledger.rollback(start)
    ledger.reserve(owner, 32)
    assert ledger.reserve(follower, 22) == Shortfall("prefix", 20, 20)
    ledger.preempt(owner)
    assert isinstance(ledger.reserve(follower, 22), Grant)


def test_plan_that_starts_both_at_once_is_legal() -> None:
    desk = Desk((40,))
    desk.wait("a", range(20))
    desk.wait("b", range(20))
    view = desk.view()
    plan = SchedulePlan({"a": 20, "b": 20})
    check_plan(plan, view, lambda: StepLedger(view, desk.kv, desk.requests, defers=False), "test", num_inflight=0)


def test_long_queue_of_followers_is_not_asked_to_its_end() -> None:
    desk = Desk((400,), max_num_seqs=4)
    for i in range(50):
        desk.wait(f"r{i}", range(20))
    asked: list[str] = []
    scheduler = PolicyScheduler(Asked(asked))
    assert scheduler.schedule(desk.view(), desk.ledger()).num_scheduled_tokens == {"r0": 20}
    assert asked == ["r0", "r1", "r2", "r3"], "no more than there are slots for"


@pytest.mark.parametrize("event", ["abort", "preempt", "error"])
def test_first_follower_inherits_what_an_owner_left(event: str) -> None:
    """The owner goes after two of four chunks: the next one starts behind them, and the others follow that one."""

    def scheduler(context: SchedulerContext) -> Scheduler:
        return PreemptInPrefill(build_fcfs(context), 512) if event == "preempt" else build_fcfs(context)

    harness = sharing_harness(256, scheduler=scheduler)
    least = add_sharers(harness, count=6)
    if event == "error":
        harness.executor.faults.row_errors["r0"] = 0
    harness.step()
    harness.step()
    if event == "abort":
        output = harness.engine.abort("r0")
        assert output is not None
        harness.last["r0"] = output
    harness.run()
    lost = {"r0"} if event != "preempt" else set()
    harness.check_truth(but=lost)
    assert harness.engine.stats.num_computed_tokens <= 1.1 * least
    assert harness.engine.stats.num_recomputed_tokens <= 16
    if event == "abort":
        assert harness.last["r0"].finish_reason is FinishReason.ABORT


# ---- whoever comes behind a follower takes only what is left beside it ----

IN_ORDER = ("fcfs", "priority", "prefix_affinity", "static_batch")
"""Schedulers that put requests which arrive together, of one priority and without a cached prefix, in that order."""
SHORT_OF: dict[str, dict[str, Any]] = {
    "slots": {"max_num_seqs": 3},
    "blocks": {"num_blocks": (13,)},
    "tokens": {"budget": 50},
    "prompt tokens": {"budget": 200, "max_prefill_tokens": 50},
    "chunks": {"budget": 62, "max_chunk_tokens": 20},
    "partial prompts": {"tail": 60, "max_chunk_tokens": 48, "max_num_partial_prefills": 1},
    "memory to grow": {"num_blocks": (16,), "admission": "reserve_all"},
}


def starts(scheduler: str, num_behind: int, num_followers: int = 2, tail: int = 20, **options: Any) -> dict[str, int]:
    """When an owner, its followers and so many greedy requests behind them start, all of which arrive at once."""
    own = {key: options.pop(key) for key in tuple(options) if key not in ("num_blocks", "budget", "max_num_seqs")}
    if "admission" in own:
        own["admission"] = build_choice(default_registry().get("scheduler.admission", own["admission"]).info, {})
    info = default_registry().get("scheduler", scheduler).info
    harness = sharing_harness(
        **{"budget": 256, **options}, scheduler=lambda context: build_choice(info, own).build(context)
    )
    harness.add(harness.request("owner", range(48), 3))
    for index in range(num_followers):
        harness.add(
            harness.request(f"follower{index}", [*range(32), *range(100 * (index + 1), 100 * (index + 1) + tail)], 3)
        )
    for index in range(num_behind):
        harness.add(harness.request(f"behind{index}", range(1_000 * (index + 1), 1_000 * (index + 1) + 120), 40))
    harness.run()
    harness.check_truth()
    first: dict[str, int] = {}
    for plan in harness.executor.plans:
        for row in plan.rows:
            first.setdefault(row.request_id, plan.step_id)
    return first


@pytest.mark.parametrize("short_of", SHORT_OF)
@pytest.mark.parametrize("scheduler", IN_ORDER)
def test_follower_starts_as_soon_as_if_nobody_came_behind_it(scheduler: str, short_of: str) -> None:
    alone, overtaken = (starts(scheduler, num_behind, 1, **SHORT_OF[short_of]) for num_behind in (0, 3))
    assert overtaken["follower0"] == alone["follower0"], f"{overtaken} against {alone}"


def test_followers_start_as_soon_as_if_nobody_came_behind_them_whatever_the_limits() -> None:
    """Memory is ample here: what those that decode take meanwhile is not kept, see ADR 0003."""
    for seed in range(60):
        rng = random.Random(seed)
        limits: dict[str, Any] = {
            "max_num_seqs": rng.randrange(2, 9),
            "budget": rng.randrange(40, 160),
            "num_followers": rng.randrange(1, 4),
            "tail": rng.randrange(1, 9),
            "max_chunk_tokens": rng.choice([None, 16, 48]),
            "max_prefill_tokens": rng.choice([None, 50, 90]),
            "max_num_partial_prefills": rng.choice([None, 1, 2]),
        }
        alone, overtaken = (starts("fcfs", num_behind, **limits) for num_behind in (0, 4))
        late = {name: (step, overtaken[name]) for name, step in alone.items() if overtaken[name] > step}
        assert not late, f"seed {seed}, {limits}: {late}"


def test_what_a_follower_leaves_is_used() -> None:
    first = starts("fcfs", 3, budget=1_000)
    assert [first[f"behind{index}"] for index in range(3)] == [0, 0, 0]
