"""prefix_affinity: what lies in the cache comes first, within a window and with a bound."""

from __future__ import annotations

import pytest

from tests.plugins.schedulers.scheduling import build, first_steps, harness_with, served
from tokenloom.batch import PreemptMode
from tokenloom.interfaces.scheduler import Scheduler, SchedulerContext
from tokenloom.testing.desk import Desk
from tokenloom.testing.engine_harness import EngineHarness, PreemptAt
from tokenloom.testing.watched_scheduler import WatchedScheduler


def desk_with_cache() -> Desk:
    desk = Desk((60,), max_num_seqs=8, budget=256)
    desk.cache(range(16))
    desk.wait("cold", range(500, 520))
    desk.wait("warm", [*range(8), *range(600, 612)])
    desk.wait("hot", [*range(16), *range(700, 704)])
    desk.wait("hot_too", [*range(16), *range(800, 804)])
    return desk


def test_longest_cached_prefix_comes_first_and_equal_ones_in_order_of_arrival() -> None:
    assert list(served(desk_with_cache(), "prefix_affinity")) == ["hot", "hot_too", "warm", "cold"]


def test_only_the_window_is_looked_at() -> None:
    """What is behind it comes after it, in order of arrival."""
    assert list(served(desk_with_cache(), "prefix_affinity", window=2)) == ["warm", "cold", "hot", "hot_too"]
    assert list(served(desk_with_cache(), "prefix_affinity", window=3)) == ["hot", "warm", "cold", "hot_too"]


def test_lookups_in_a_step_do_not_grow_with_the_queue() -> None:
    desk = Desk((60,), max_num_seqs=2, budget=256)
    for index in range(200):
        desk.wait(f"r{index}", [index, 1, 2, 3, 4])
    ledger = desk.ledger()
    build("prefix_affinity", desk.limits, window=16).schedule(desk.view(), ledger)
    assert len(ledger._matches) == 16


def test_running_requests_come_before_cached_ones() -> None:
    desk = desk_with_cache()
    desk.run("running", range(900, 909))
    assert next(iter(served(desk, "prefix_affinity"))) == "running"


def test_older_than_max_wait_s_goes_first() -> None:
    desk = desk_with_cache()
    desk.clock.advance(30.0)
    for request in desk.waiting:
        request.arrival_time_s = 0.0 if request.request_id == "cold" else 1.0
    assert next(iter(served(desk, "prefix_affinity"))) == "cold"
    assert next(iter(served(desk, "prefix_affinity", max_wait_s=30.1))) == "hot"
    assert next(iter(served(desk, "prefix_affinity", max_wait_s=None))) == "hot"


def hot_stream(max_overtakes: int, window: int = 128, num_cold: int = 1) -> EngineHarness:
    """A cold request, and one a step whose prefix is cached, in an engine that serves one at a time."""
    settings = {"max_overtakes": max_overtakes, "max_wait_s": 1e9, "window": window}
    harness = harness_with("prefix_affinity", settings, max_num_seqs=1)
    harness.run(harness.request("first", range(17), 1))
    for index in range(num_cold):
        harness.add(harness.request(f"cold{index}", range(500 + 50 * index, 520 + 50 * index), 1))
    for index in range(40):
        harness.add(harness.request(f"hot{index}", [*range(16), 900 + index], 1))
        harness.step()
    harness.run()
    return harness


def test_request_is_overtaken_no_more_often_than_stated() -> None:
    for most in (1, 5, 12):
        order = list(first_steps(hot_stream(most)))
        assert order.index("cold0") == most + 1, order


def test_overtaking_is_counted_for_everybody_who_is_passed() -> None:
    order = list(first_steps(hot_stream(6, num_cold=3)))
    assert [order.index(f"cold{index}") for index in range(3)] == [7, 8, 9]


@pytest.mark.parametrize("mode", list(PreemptMode))
@pytest.mark.parametrize("tells_twice", [False, True])
def test_preempted_request_is_overtaken_no_more_often_than_stated(mode: PreemptMode, tells_twice: bool) -> None:
    """In whatever state it waits, and however often its preemption is told."""
    most = 5

    def scheduler(context: SchedulerContext) -> Scheduler:
        inner = build("prefix_affinity", context, max_overtakes=most, max_wait_s=1e9)
        return PreemptAt(WatchedScheduler(inner, tells_twice=tells_twice), {"cold": [1]}, mode)

    harness = EngineHarness(scheduler=scheduler, max_num_seqs=1, vocab_size=10_000_000, host_memory_bytes=10**9)
    harness.run(harness.request("first", range(41), 1))
    cold = harness.request("cold", range(500, 520), 2)
    harness.add(cold)
    harness.step()
    for index in range(20):
        harness.add(harness.request(f"hot{index}", [*range(40), 900 + index], 1))
        harness.step()
        if cold.is_finished:
            break
    # The first one took the place that it gave up.
    assert [cold.num_preemptions, list(first_steps(harness))[-1]] == [1, f"hot{most}"]
    harness.run()
    harness.check_truth()


def test_preempted_request_keeps_its_place_in_line() -> None:
    harness = harness_with("prefix_affinity", {"max_wait_s": 1e9}, num_blocks=(6,), max_num_seqs=2)
    harness.run(*[harness.request(name, range(20 * i, 20 * i + 7), 10) for i, name in enumerate("abc")])
    harness.check_truth()
    assert harness.requests["b"].num_preemptions > 0


def test_hit_rate_is_higher_than_in_order_of_arrival() -> None:
    """Three prefixes, in turns, in a cache that holds one."""

    def num_cached(name: str) -> int:
        harness = harness_with(name, num_blocks=(13,), max_num_seqs=1)
        requests = [
            harness.request(f"r{index}", [*range(100 * (index % 3), 100 * (index % 3) + 32), 900 + index], 1)
            for index in range(12)
        ]
        harness.run(*requests)
        return harness.engine.stats.num_cached_tokens

    assert num_cached("fcfs") == 0
    assert num_cached("prefix_affinity") == 9 * 32
