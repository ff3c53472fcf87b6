"""Who is blamed when a plugin misbehaves, and what happens to an engine that is called at the wrong time."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from tests.core.test_engine_failures import DeafScheduler, misbehaving_harness
from tests.core.test_engine_reservations import ReservingCache
from tokenloom.batch import SchedulePlan
from tokenloom.errors import EngineBusyError, EngineDeadError, PluginContractError
from tokenloom.interfaces.cache import BlockKey, CacheContext, Reservation
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import SchedulerEvent
from tokenloom.testing.engine_harness import ChosenDrafts, EngineHarness, build_fcfs, oracle_drafts


@pytest.mark.parametrize(
    "garbage",
    [None, "garbage", SchedulePlan([1, 2], ()), SchedulePlan({}, None), SchedulePlan({"a": 1}, ({},))],  # type: ignore[arg-type]
)
def test_what_is_no_plan_is_refused_by_name(garbage: Any) -> None:
    harness = misbehaving_harness(lambda view, ledger: garbage)
    with pytest.raises(PluginContractError, match=r"scheduler=test broke .* returns a SchedulePlan"):
        harness.step()
    assert harness.engine.is_alive


def test_scheduler_whose_observe_raises_is_named_once() -> None:
    harness = EngineHarness(scheduler=lambda context: DeafScheduler(context, "StepLanded"))
    harness.add(harness.request("a", [1, 2], 5))
    with pytest.raises(PluginContractError, match=r"^plugin scheduler=test broke the rule 'observe\(\) takes"):
        harness.run()


@pytest.mark.parametrize("answer", [2.5, None, -1, "3"])
def test_draft_policy_that_returns_no_count_is_named(answer: Any) -> None:
    harness = EngineHarness(
        draft_policy=ChosenDrafts(lambda r, n: answer), drafts=lambda m: oracle_drafts(m, lambda r, n: 0)
    )
    harness.add(harness.request("a", [1, 2], 5))
    with pytest.raises(PluginContractError, match=r"spec_decode\.policy=test broke the rule 'num_drafts"):
        harness.step()
    assert not harness.engine.is_alive


def test_draft_policy_is_held_to_the_room_that_is_left() -> None:
    harness = EngineHarness(
        draft_policy=ChosenDrafts(lambda r, n: 10**6), drafts=lambda m: oracle_drafts(m, lambda r, n: 99)
    )
    harness.run(harness.request("a", [1, 2], 9))
    harness.check_truth()
    assert max(row.max_drafts for plan in harness.executor.plans for row in plan.rows) <= 9


class LyingCache(ReservingCache):
    """Breaks one promise of the cache contract."""

    def __init__(self, context: CacheContext, lie: str) -> None:
        super().__init__(context, lambda request: Reservation())
        self._lie = lie

    def match(self, keys: Sequence[BlockKey], window_blocks: int | None = None) -> list[int]:
        if self._lie == "match raises":
            raise ZeroDivisionError("on purpose")
        return [10**6] if self._lie == "match invents" else super().match(keys, window_blocks)

    def insert(self, keys: Sequence[BlockKey], index: int, block_id: int) -> bool:
        if self._lie == "insert raises":
            raise ZeroDivisionError("on purpose")
        return super().insert(keys, index, block_id)

    def is_evictable(self, block_id: int) -> bool:
        return self._lie != "nothing evictable" and super().is_evictable(block_id)

    def remove(self, block_id: int) -> Iterable[int]:
        return super().remove(block_id)


@pytest.mark.parametrize("lie", ["match raises", "match invents", "insert raises", "nothing evictable"])
def test_cache_that_breaks_its_contract_is_the_one_that_is_named(lie: str) -> None:
    harness = EngineHarness(cache=lambda context: LyingCache(context, lie), num_blocks=(8,))
    with pytest.raises(PluginContractError, match="plugin cache=test broke the rule"):
        for number in range(4):
            harness.run(harness.request(f"r{number}", range(30 * number, 30 * number + 9), 8))


class CallingScheduler(Scheduler):
    """Calls the engine while it plans."""

    def __init__(self, context: SchedulerContext) -> None:
        self._inner = build_fcfs(context)
        self.call: Any = None

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        if self.call is not None:
            self.call()
        return self._inner.schedule(view, ledger)

    def observe(self, event: SchedulerEvent) -> None:
        self._inner.observe(event)


@pytest.mark.parametrize("method", ["step", "add_request", "abort"])
def test_engine_refuses_calls_in_mid_step_and_goes_on(method: str) -> None:
    harness = EngineHarness(scheduler=CallingScheduler)
    other = harness.request("other", [1], 2)
    harness.add(harness.request("a", [1, 2], 6))
    refused: list[EngineBusyError] = []

    def call() -> None:
        arguments = {"step": (), "add_request": (other,), "abort": ("a",)}[method]
        with pytest.raises(EngineBusyError) as caught:
            getattr(harness.engine, method)(*arguments)
        refused.append(caught.value)

    def call_from_a_thread() -> None:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    scheduler = harness.scheduler
    assert isinstance(scheduler, CallingScheduler)
    scheduler.call = call
    harness.step()
    scheduler.call = call_from_a_thread
    harness.step()
    scheduler.call = None
    assert len(refused) == 2
    harness.run()
    harness.check_truth(but=["other"])


def test_closed_engine_refuses_everything_and_closes_once() -> None:
    harness = EngineHarness()
    harness.engine.close()
    harness.engine.close()
    assert harness.num_closed == 1
    with pytest.raises(EngineDeadError):
        harness.engine.step()
    with pytest.raises(EngineDeadError):
        harness.add(harness.request("late", [1], 2))
