"""Records the decisions of one engine: leaves around its scheduler, executor and clock that pass every call on.

A line each for an arrival, a request's end from outside (abort, stop string), a plan when it is launched, and a result
when it has landed. Each line also holds the engine's readings of the clock since the last line, so that a replay sees
the same times. What a step costs grows with its rows and new blocks, and with nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from tokenloom.batch import Preemption, SchedulePlan, StepPlan, StepResult
from tokenloom.clock import Clock
from tokenloom.engine_config import EngineConfig
from tokenloom.errors import ConfigError
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.executor import Executor, ModelFacts, StepHandle
from tokenloom.interfaces.scheduler import Ledger, Scheduler, SchedulerView
from tokenloom.interfaces.scheduler_events import RequestArrived, RequestFinished, SchedulerEvent, StepLanded
from tokenloom.request import Request
from tokenloom.tracing.records import facts_record, plan_record, request_record, result_record

__all__ = ["TRACE_FORMAT", "TRACE_VERSION", "TraceRecorder", "check_trace_target"]

TRACE_FORMAT = "tokenloom.trace"
TRACE_VERSION = 1


def check_trace_target(file: str | None) -> None:
    """Refuses a trace.file that cannot be written, before a model is loaded. None, no trace, is fine.

    Raises:
        ConfigError: the file exists, or its folder does not.
    """
    if file is None:
        return
    path = Path(file)
    if path.exists():
        raise ConfigError(f"trace.file={file}: it exists; remove it, or name another one for this engine")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"trace.file={file}: its folder does not exist; make it first")


@final
class TraceRecorder:
    """The file of one engine's trace, and the leaves that write to it. `close` comes with the executor's."""

    def __init__(self, file: str, config: EngineConfig, facts: ModelFacts) -> None:
        # Written line by line: what led to a crash is what is wanted most.
        self._file = Path(file).open("x", encoding="utf-8", buffering=1)  # noqa: SIM115 - lives as long as the engine
        self._readings: list[float] = []
        self._is_landing = False
        self._preemptions: tuple[Preemption, ...] = ()
        header = {
            "format": TRACE_FORMAT,
            "version": TRACE_VERSION,
            "seed": config.engine.seed,
            "config": {name: _plain(value) for name, value in config if name != "trace"},
            "facts": facts_record(facts),
        }
        self._file.write(json.dumps(header) + "\n")

    def clock(self, inner: Clock) -> Clock:
        """A clock that the engine reads in place of `inner`."""
        return _RecordedClock(inner, self._readings)

    def scheduler(self, inner: Scheduler) -> Scheduler:
        """A scheduler that the engine asks in place of `inner`."""
        return _RecordedScheduler(inner, self)

    def executor(self, inner: Executor) -> Executor:
        """An executor that the engine runs in place of `inner`."""
        return _RecordedExecutor(inner, self)

    def take_schedule(self, plan: SchedulePlan) -> None:
        """The scheduler proposed a plan, which counts once it is launched."""
        self._preemptions = plan.preemptions

    def take_plan(self, plan: StepPlan) -> None:
        """A step is launched."""
        self._is_landing = True
        self._write("plan", plan_record(plan, self._preemptions))

    def take_result(self, result: StepResult) -> None:
        """A step has landed."""
        self._write("result", result_record(result))

    def take_event(self, event: SchedulerEvent) -> None:
        """What the engine tells its scheduler."""
        if isinstance(event, StepLanded):
            self._is_landing = False
        elif isinstance(event, RequestArrived):
            assert isinstance(event.request, Request), f"{event.request} is no Request"
            self._write("arrive", request_record(event.request))
        elif isinstance(event, RequestFinished) and not self._is_landing:
            # Ends that follow from a step's result need no line of their own.
            request = event.request
            record = {"request": request.request_id, "reason": event.reason.value}
            self._write("end", {**record, "num_output_tokens": request.num_output_tokens})

    def close(self) -> None:
        """Ends the file; idempotent."""
        self._file.close()

    def _write(self, event: str, record: Mapping[str, Any]) -> None:
        line = json.dumps({"event": event, **record, "clock": self._readings}, separators=(",", ":"))
        self._file.write(line + "\n")
        self._readings.clear()


def _plain(value: Any) -> Any:
    if isinstance(value, PluginChoice):
        return {"name": value.name, **_plain(value.config)}
    if isinstance(value, BaseModel):
        return {name: _plain(part) for name, part in value}
    return to_jsonable_python(value)


@final
class _RecordedClock(Clock):
    """Readings come as pairs (time, how often in a row): under a virtual clock most are equal."""

    def __init__(self, inner: Clock, readings: list[float]) -> None:
        self._inner = inner
        self._readings = readings

    def now(self) -> float:
        now_s, readings = self._inner.now(), self._readings
        if readings and readings[-2] == now_s:
            readings[-1] += 1
        else:
            readings += (now_s, 1)
        return now_s


@final
class _RecordedScheduler(Scheduler):
    def __init__(self, inner: Scheduler, recorder: TraceRecorder) -> None:
        self._inner = inner
        self._recorder = recorder

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        plan = self._inner.schedule(view, ledger)
        self._recorder.take_schedule(plan)
        return plan

    def observe(self, event: SchedulerEvent) -> None:
        # Before the scheduler hears of it: should it fail, the trace says on what.
        self._recorder.take_event(event)
        self._inner.observe(event)


@final
class _RecordedExecutor(Executor):
    def __init__(self, inner: Executor, recorder: TraceRecorder) -> None:
        self._inner = inner
        self._recorder = recorder

    def model_facts(self) -> ModelFacts:
        return self._inner.model_facts()

    def launch(self, plan: StepPlan) -> StepHandle:
        self._recorder.take_plan(plan)
        return _RecordedHandle(self._inner.launch(plan), self._recorder)

    def close(self) -> None:
        self._inner.close()
        self._recorder.close()


@final
class _RecordedHandle(StepHandle):
    def __init__(self, inner: StepHandle, recorder: TraceRecorder) -> None:
        self._inner = inner
        self._recorder = recorder
        self._result: StepResult | None = None

    def is_done(self) -> bool:
        return self._inner.is_done()

    def result(self) -> StepResult:
        if self._result is None:
            self._result = self._inner.result()
            self._recorder.take_result(self._result)
        return self._result
