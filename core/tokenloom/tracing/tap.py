"""Leaves around an engine's scheduler, executor and clock that pass every call on, and tell what went by.

What a step costs grows with its rows and new blocks, and with nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, final

from tokenloom.batch import Preemption, SchedulePlan, StepPlan, StepResult
from tokenloom.clock import Clock
from tokenloom.engine_tap import EngineTap, HeardHandle
from tokenloom.interfaces.executor import Executor, ModelFacts, StepHandle
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerView
from tokenloom.interfaces.scheduler_events import RequestArrived, RequestFinished, SchedulerEvent, StepLanded
from tokenloom.request import Request
from tokenloom.tracing.records import Record, plan_record, request_record, result_record

__all__ = ["DecisionSink", "DecisionTap"]


class DecisionSink(ABC):
    """Takes what a tap hears."""

    @abstractmethod
    def take(self, event: str, record: Record) -> None:
        """One of `record_schema.EVENTS`, when it happens: a plan when it is launched, a result when it has landed.

        An error of TokenloomError's tree that it raises for a plan ends the engine's step with that error.
        """

    @abstractmethod
    def close(self) -> None:
        """The engine is closed; idempotent."""


@final
class DecisionTap(EngineTap):
    """Puts the leaves in place. Each record holds, as `clock`, the engine's readings of the clock since the last one:
    pairs of a time and how often it was read in a row.
    """

    def __init__(self, sink: DecisionSink) -> None:
        self._sink = sink
        self._readings: list[float] = []
        self._preemptions: tuple[Preemption, ...] = ()
        self._is_landing = False

    def clock(self, inner: Clock) -> Clock:
        return _TappedClock(inner, self._readings)

    def scheduler(self, inner: Scheduler) -> Scheduler:
        return _TappedScheduler(inner, self)

    def executor(self, inner: Executor) -> Executor:
        return _TappedExecutor(inner, self)

    def hear_schedule(self, plan: SchedulePlan) -> None:
        """The scheduler proposed a plan, which counts once it is launched."""
        self._preemptions = plan.preemptions

    def hear_launch(self, plan: StepPlan) -> None:
        """A step is launched."""
        self._is_landing = True
        self._tell("plan", plan_record(plan, self._preemptions))

    def hear_result(self, result: StepResult) -> None:
        """A step has landed."""
        self._tell("result", result_record(result))

    def hear_event(self, event: SchedulerEvent) -> None:
        """What the engine tells its scheduler."""
        if isinstance(event, StepLanded):
            self._is_landing = False
        elif isinstance(event, RequestArrived):
            assert isinstance(event.request, Request), f"{event.request} is no Request"
            self._tell("arrive", request_record(event.request))
        elif isinstance(event, RequestFinished) and not self._is_landing:
            # Ends that follow from a step's result need no record of their own.
            request = event.request
            ended = {"request": request.request_id, "reason": event.reason.value}
            self._tell("end", {**ended, "num_output_tokens": request.num_output_tokens})

    def hear_close(self) -> None:
        """The executor is closed."""
        self._sink.close()

    def _tell(self, event: str, record: Mapping[str, Any]) -> None:
        self._sink.take(event, {"event": event, **record, "clock": list(self._readings)})
        self._readings.clear()


@final
class _TappedClock(Clock):
    def __init__(self, inner: Clock, readings: list[float]) -> None:
        self._inner = inner
        self._readings = readings

    def now(self) -> float:
        now_s, readings = self._inner.now(), self._readings
        # Under a virtual clock most readings are equal.
        if readings and readings[-2] == now_s:
            readings[-1] += 1
        else:
            readings += (now_s, 1)
        return now_s


@final
class _TappedScheduler(Scheduler):
    def __init__(self, inner: Scheduler, tap: DecisionTap) -> None:
        self._inner = inner
        self._tap = tap

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        plan = self._inner.schedule(view, ledger)
        self._tap.hear_schedule(plan)
        return plan

    def observe(self, event: SchedulerEvent) -> None:
        # Before the scheduler hears of it: should it fail, the trace says on what.
        self._tap.hear_event(event)
        self._inner.observe(event)


@final
class _TappedExecutor(Executor):
    def __init__(self, inner: Executor, tap: DecisionTap) -> None:
        self._inner = inner
        self._tap = tap

    def model_facts(self) -> ModelFacts:
        return self._inner.model_facts()

    def launch(self, plan: StepPlan) -> StepHandle:
        self._tap.hear_launch(plan)
        return HeardHandle(self._inner.launch(plan), self._tap.hear_result)

    def close(self) -> None:
        self._inner.close()
        self._tap.hear_close()
