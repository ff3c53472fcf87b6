"""Engine when something else fails: one request, a policy, the executor. It goes on, or is clearly dead; never half."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tokenloom.batch import Preemption, RowPlan, RowResult, SchedulePlan, StepPlan, StepResult
from tokenloom.errors import EngineDeadError, PluginContractError
from tokenloom.interfaces.executor import StepHandle
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerContext, SchedulerView
from tokenloom.interfaces.scheduler_events import RequestPreempted, SchedulerEvent
from tokenloom.request import FinishReason, Request, RequestView
from tokenloom.testing.engine_harness import ChosenDrafts, EngineHarness, build_fcfs, oracle_drafts

MakePlan = Callable[[SchedulerView, Ledger], SchedulePlan]


class Misbehaving(Scheduler):
    """fcfs, but for one step; the test says what happens in it."""

    def __init__(self, context: SchedulerContext, at_step: int, make_plan: MakePlan) -> None:
        self._inner = build_fcfs(context)
        self._at_step = at_step
        self._make_plan = make_plan
        self.is_cured = False

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        if view.step_id == self._at_step and not self.is_cured:
            return self._make_plan(view, ledger)
        return self._inner.schedule(view, ledger)

    def observe(self, event: SchedulerEvent) -> None:
        self._inner.observe(event)


def misbehaving_harness(make_plan: MakePlan, **options: object) -> EngineHarness:
    """Two running requests and a waiting one when step 3 comes."""
    harness = EngineHarness(
        scheduler=lambda context: Misbehaving(context, 3, make_plan),
        max_num_seqs=2,
        budget=8,
        **options,  # type: ignore[arg-type]
    )
    names = ("a", "b", "c")
    harness.add(*[harness.request(name, range(10 * i, 10 * i + 3), 9) for i, name in enumerate(names)])
    for _ in range(3):
        harness.step()
    assert (harness.engine.num_running, harness.engine.num_waiting) == (2, 1)
    return harness


def cure(harness: EngineHarness) -> None:
    assert isinstance(harness.scheduler, Misbehaving)
    harness.scheduler.is_cured = True


def state_of(harness: EngineHarness) -> list[object]:
    return [
        harness.engine.kv_usage(),
        [(r.status, r.num_computed_tokens, r.num_inflight_tokens, r.num_tokens) for r in harness.requests.values()],
        {name: [list(table) for table in harness.kv.tables(name)] for name in ("a", "b")},
    ]


ILLEGAL: dict[str, tuple[SchedulePlan, str]] = {
    "empty": (SchedulePlan(), "makes progress"),
    "unknown": (SchedulePlan({"nobody": 1}), "requests of its view"),
    "zero": (SchedulePlan({"a": 0}), "legal"),
    "too many": (SchedulePlan({"a": 2}), "legal"),
    "no slot": (SchedulePlan({"c": 3}), "fits the slots"),
    "budget": (SchedulePlan({"a": 1, "b": 1, "c": 9}), "legal"),
    "victim scheduled": (SchedulePlan({"a": 1}, (Preemption("a"),)), "legal"),
    "victim waits": (SchedulePlan({"a": 1}, (Preemption("c"),)), "legal"),
    "victim twice": (SchedulePlan({"a": 1}, (Preemption("b"), Preemption("b"))), "legal"),
    "victim unknown": (SchedulePlan({"a": 1}, (Preemption("nobody"),)), "requests of its view"),
}


@pytest.mark.parametrize("name", sorted(ILLEGAL))
@pytest.mark.parametrize("checks", ["off", "cheap", "full"])
def test_illegal_plan_commits_nothing_and_the_engine_can_go_on(name: str, checks: str) -> None:
    plan, rule = ILLEGAL[name]
    harness = misbehaving_harness(lambda view, ledger: plan, checks=checks)
    before = state_of(harness)
    for _ in range(2):
        with pytest.raises(PluginContractError) as caught:
            harness.step()
        assert caught.value.plugin == "scheduler=test"
        assert rule in caught.value.rule
        assert state_of(harness) == before
        harness.kv.check()
    cure(harness)
    harness.run()
    harness.check_truth()


def test_plan_of_another_ledger_is_checked_on_its_own() -> None:
    """Returning what one's own ledger wrote down skips the check; returning it altered does not."""

    def tamper(view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        ledger.reserve(view.running[0], 1)
        plan = ledger.plan()
        assert isinstance(plan.num_scheduled_tokens, dict)
        plan.num_scheduled_tokens["a"] = 100
        return plan

    harness = misbehaving_harness(tamper, checks="off")
    with pytest.raises(PluginContractError, match="100 tokens"):
        harness.step()


def test_plan_made_by_hand_is_as_good_as_the_ledgers() -> None:
    harness = misbehaving_harness(lambda view, ledger: SchedulePlan({"b": 1}, (Preemption("a"),)))
    harness.run()
    harness.check_truth()
    assert harness.requests["a"].num_preemptions == 1


def test_scheduler_that_writes_to_its_view_is_found_by_full_checks() -> None:
    def scribble(view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        request = view.running[0]
        assert isinstance(request, Request)
        ledger.reserve(request, 1)
        request.num_computed_tokens += 1
        return ledger.plan()

    harness = misbehaving_harness(scribble)
    with pytest.raises(PluginContractError, match="scheduler=test"):
        harness.step()
    assert_usable_or_dead(harness)


def test_scheduler_that_raises_breaks_its_contract_and_the_engine_can_go_on() -> None:
    harness = misbehaving_harness(lambda view, ledger: (ledger.reserve(view.running[0], 50), ledger.plan())[1])
    before = state_of(harness)
    with pytest.raises(PluginContractError, match="scheduler=test"):
        harness.step()
    assert state_of(harness) == before
    cure(harness)
    harness.run()
    harness.check_truth()


# ---- one request fails ----


@pytest.mark.parametrize("position", [0, 1, 4])
def test_row_error_ends_that_request_alone(position: int) -> None:
    harness = EngineHarness(
        draft_policy=ChosenDrafts(lambda r, n: 2), drafts=lambda m: oracle_drafts(m, lambda r, n: 0)
    )
    harness.executor.faults.row_errors["bad"] = position
    bad = harness.request("bad", range(9), 8)
    harness.run(harness.request("a", [1, 2], 8), bad, harness.request("b", [5, 6, 7], 8))
    harness.check_truth(but=["bad"])
    assert (harness.reason("bad"), harness.last["bad"].error) == (FinishReason.ERROR, "failed on purpose")
    assert harness.tokens["bad"] == harness.model.verdict(bad).token_ids[:position]


def test_memory_of_a_failed_row_is_not_published() -> None:
    harness = EngineHarness()
    harness.executor.faults.row_errors["bad"] = 0
    harness.run(harness.request("bad", range(9), 8))
    assert len(harness.kv.pools[0].cache) == 0
    harness.run(harness.request("same", range(9), 8))
    assert harness.last["same"].num_cached_tokens == 0
    harness.check_truth(but=["bad"])


# ---- the executor fails ----


@pytest.mark.parametrize("where", ["launch_error_step", "result_error_step"])
def test_executor_error_kills_the_engine_for_good(where: str) -> None:
    harness = EngineHarness()
    setattr(harness.executor.faults, where, 2)
    harness.add(harness.request("a", [1, 2], 8))
    harness.step()
    harness.step()
    with pytest.raises(
        EngineDeadError, match=r"step 2 failed: RuntimeError: (launch|result) failed on purpose"
    ) as caught:
        harness.step()
    assert isinstance(caught.value.__cause__, RuntimeError)
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="stopped after an earlier failure"):
            harness.engine.step()
    assert len(harness.executor.plans) == 3
    harness.engine.abort("a")
    harness.engine.close()
    assert harness.executor.is_closed


def test_dead_engine_takes_no_request_in() -> None:
    harness = EngineHarness()
    harness.executor.faults.launch_error_step = 0
    harness.add(harness.request("a", [1, 2], 8))
    with pytest.raises(EngineDeadError):
        harness.step()
    with pytest.raises(EngineDeadError):
        harness.add(harness.request("b", [1, 2], 8))


def assert_usable_or_dead(harness: EngineHarness) -> None:
    """After a failure: either all goes on and no output was lost, or every step says that the engine is dead."""
    try:
        harness.step()
    except EngineDeadError:
        with pytest.raises(EngineDeadError):
            harness.engine.step()
    else:
        harness.run()
        harness.check_truth()


@pytest.mark.parametrize("mangle", ["missing row", "rows out of order", "another step"])
def test_result_that_breaks_the_executors_contract_leaves_the_engine_usable_or_dead(
    monkeypatch: pytest.MonkeyPatch, mangle: str
) -> None:
    harness = EngineHarness()
    harness.add(harness.request("a", [1, 2], 8), harness.request("b", [3], 8))
    launch = harness.executor.launch

    class Mangled(StepHandle):
        def __init__(self, result: StepResult) -> None:
            self._result = result

        def is_done(self) -> bool:
            return True

        def result(self) -> StepResult:
            rows = self._result.rows
            if mangle == "another step":
                return StepResult(self._result.step_id + 1, rows)
            return StepResult(self._result.step_id, rows[:-1] if mangle == "missing row" else rows[::-1])

    def mangled_launch(plan: StepPlan) -> StepHandle:
        handle = launch(plan)
        return Mangled(handle.result()) if plan.step_id == 3 else handle

    monkeypatch.setattr(harness.executor, "launch", mangled_launch)
    with pytest.raises((EngineDeadError, AssertionError, ValueError)):
        for _ in range(8):
            harness.step()
    assert_usable_or_dead(harness)


@pytest.mark.parametrize("at_call", [1, 2, 3])
def test_interrupt_in_the_executor_leaves_the_engine_usable_or_dead(
    monkeypatch: pytest.MonkeyPatch, at_call: int
) -> None:
    """Ctrl-C in the middle of a forward pass."""
    harness = EngineHarness()
    harness.add(harness.request("a", [1, 2], 8), harness.request("b", [3], 8))
    finish_row, num_calls = harness.executor._finish_row, 0

    def interrupted(plan: RowPlan) -> RowResult:
        nonlocal num_calls
        num_calls += 1
        if num_calls == at_call:
            raise KeyboardInterrupt
        return finish_row(plan)

    monkeypatch.setattr(harness.executor, "_finish_row", interrupted)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(8):
            harness.step()
    assert_usable_or_dead(harness)


# ---- a policy fails while a step is being committed ----


class DeafScheduler(Scheduler):
    """fcfs that preempts as it admits at step 3, and whose `observe` raises at the first event of one kind."""

    def __init__(self, context: SchedulerContext, kind: str) -> None:
        self._inner = build_fcfs(context)
        self._kind = kind

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        if view.step_id == 3:
            return SchedulePlan({"c": 3}, (Preemption("a"),))
        return self._inner.schedule(view, ledger)

    def observe(self, event: SchedulerEvent) -> None:
        if type(event).__name__ == self._kind:
            self._kind = ""
            raise RuntimeError("observe failed on purpose")


@pytest.mark.parametrize("kind", ["RequestPreempted", "RequestFinished", "StepLanded"])
def test_observe_that_raises_leaves_the_engine_usable_or_dead(kind: str) -> None:
    harness = EngineHarness(max_num_seqs=2, scheduler=lambda context: DeafScheduler(context, kind))
    harness.add(*[harness.request(name, range(10 * i, 10 * i + 3), 9) for i, name in enumerate("abc")])
    with pytest.raises(Exception, match="on purpose"):
        for _ in range(40):
            harness.step()
    assert_usable_or_dead(harness)


def test_observe_that_raises_on_arrival_leaves_no_request_behind() -> None:
    harness = EngineHarness(scheduler=lambda context: DeafScheduler(context, "RequestArrived"))
    with pytest.raises(Exception, match="on purpose"):
        harness.add(harness.request("refused", [1, 2], 2))
    assert not harness.engine.has_work()
    harness.run(harness.request("a", [3], 2))
    harness.check_truth()


def test_draft_policy_that_raises_leaves_the_engine_usable_or_dead() -> None:
    has_raised: list[bool] = []

    def choose(request: RequestView, num_running: int) -> int:
        if request.num_output_tokens == 3 and request.request_id == "b" and not has_raised:
            has_raised.append(True)
            raise RuntimeError("num_drafts failed on purpose")
        return 2

    harness = EngineHarness(draft_policy=ChosenDrafts(choose), drafts=lambda m: oracle_drafts(m, lambda r, n: 0))
    harness.add(harness.request("a", [1, 2], 9), harness.request("b", [3], 9))
    with pytest.raises(Exception, match="on purpose"):
        for _ in range(40):
            harness.step()
    assert_usable_or_dead(harness)


def test_events_are_told_after_the_commit_that_they_report() -> None:
    """What a scheduler reads of the request in an event is how it stands now."""
    seen: list[tuple[str, int, bool]] = []

    class Reader(Scheduler):
        def __init__(self, context: SchedulerContext) -> None:
            self._inner = build_fcfs(context)

        def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
            return self._inner.schedule(view, ledger)

        def observe(self, event: SchedulerEvent) -> None:
            if isinstance(event, RequestPreempted):
                request = event.request
                seen.append((request.status.value, request.num_computed_tokens, request.num_preemptions == 1))

    harness = EngineHarness(num_blocks=(5,), scheduler=Reader)
    harness.run(harness.request("a", range(7), 6), harness.request("b", range(20, 27), 6))
    assert seen == [("preempted", 0, True)]
