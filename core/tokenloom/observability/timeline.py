"""When each phase of a step began and ended, for some steps of a live engine. Costs next to nothing while it is off."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from tokenloom.batch import SchedulePlan, StepPlan, StepResult
from tokenloom.clock import Clock, MonotonicClock
from tokenloom.engine_tap import EngineTap, HeardHandle
from tokenloom.interfaces.executor import Executor, ModelFacts, StepHandle
from tokenloom.interfaces.ledger import Ledger
from tokenloom.interfaces.scheduler import Scheduler, SchedulerView
from tokenloom.interfaces.scheduler_events import SchedulerEvent, StepLanded

if TYPE_CHECKING:
    from tokenloom.engine import Engine

__all__ = ["MAX_RECORDED_STEPS", "Phase", "StepRecord", "StepTimeline"]

MAX_RECORDED_STEPS = 1000
"""Of a served engine, whose recordings are held in memory and cross to a front end in one message."""

Annotate = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a step; times are seconds on the timeline's clock. `is_inner`: it lies within the launch."""

    name: str
    start_s: float
    end_s: float
    is_inner: bool = False


@dataclass(slots=True)
class StepRecord:
    """One step.

    Attributes:
        step_id: the engine's.
        phases: in order; those within the launch follow it.
        num_rows: requests in the batch; `num_prompt_rows` of them computed a part of a prompt.
        num_tokens: new tokens; `num_draft_tokens` of them are drafts.
        num_accepted_tokens: drafts that were accepted.
        num_preempted: requests that lost their memory in this step.
        num_running, num_waiting, kv_blocks: of the engine after the step.
    """

    step_id: int
    phases: list[Phase] = field(default_factory=list)
    num_rows: int = 0
    num_prompt_rows: int = 0
    num_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_preempted: int = 0
    num_running: int = 0
    num_waiting: int = 0
    kv_blocks: Mapping[str, int] = field(default_factory=dict)

    @property
    def start_s(self) -> float:
        """When it began."""
        return self.phases[0].start_s

    @property
    def end_s(self) -> float:
        """When its last phase ended."""
        return max(phase.end_s for phase in self.phases)


@final
class StepTimeline(EngineTap):
    """Records so many steps whenever it is told to. Whoever steps the engine calls `end_step` after each step.

    schedule | commit plan | launch [transfer, build, forward, logits, sample or verify, propose, results] | commit |
    finish, and what the caller notes behind it.
    """

    def __init__(self, clock: Clock | None = None, annotate: Annotate | None = None) -> None:
        """
        Args:
            clock: times are read from it; real time by default. The engine's own is left alone.
            annotate: entered around the launch of each step with its name, e.g. to mark it for another profiler.
        """
        self._clock = MonotonicClock() if clock is None else clock
        self._annotate: Annotate = (lambda _: nullcontext()) if annotate is None else annotate
        self._num_left = 0
        self._current: StepRecord | None = None
        self._has_landed = False
        self._last_s = 0.0
        self.steps: list[StepRecord] = []

    @property
    def is_recording(self) -> bool:
        """Whether steps are still to be recorded."""
        return self._num_left > 0

    def start(self, num_steps: int) -> None:
        """Forgets what was recorded, and records the next steps."""
        assert num_steps > 0, f"{num_steps} steps"
        self.steps = []
        self._num_left = num_steps
        self._current = None

    def end_step(self, engine: Engine) -> None:
        """The engine's step has returned. What is left of it, its checks, ends here."""
        if not self.is_recording:
            return
        # A step whose planning was not recorded counts, too, or the recording would not end.
        self._num_left -= 1
        record, self._current = self._current, None
        if record is None or not self._has_landed:
            return
        record.phases.append(Phase("finish", self._last_s, self.now()))
        record.num_running, record.num_waiting = engine.num_running, engine.num_waiting
        record.kv_blocks = engine.kv_usage()
        self.steps.append(record)

    def note(self, phase: str, start_s: float) -> None:
        """Adds something that was done for the last step behind it, from a time on this timeline's clock until now."""
        if self.steps:
            self.steps[-1].phases.append(Phase(phase, start_s, self.now()))

    def now(self) -> float:
        """The time on this timeline's clock."""
        return self._clock.now()

    # ---- what its leaves tell ----

    def scheduler(self, inner: Scheduler) -> Scheduler:
        return _TimedScheduler(inner, self)

    def executor(self, inner: Executor) -> Executor:
        return _TimedExecutor(inner, self)

    def schedule(self, inner: Scheduler, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        """Lets a scheduler plan. A step whose plan is refused leaves no record."""
        self._current, self._has_landed = StepRecord(view.step_id), False
        self._last_s = self.now()
        plan = inner.schedule(view, ledger)
        self._current.num_preempted = len(plan.preemptions)
        self._lap("schedule")
        return plan

    def launch(self, inner: Executor, plan: StepPlan) -> StepHandle:
        """Lets an executor launch."""
        record = self._current
        if record is None or record.step_id != plan.step_id:
            # Its planning was not recorded.
            return inner.launch(plan)
        record.num_rows = len(plan.rows)
        record.num_tokens = plan.num_tokens
        record.num_draft_tokens = sum(len(row.draft_token_ids) for row in plan.rows)
        record.num_prompt_rows = sum(
            row.num_scheduled_tokens > 1 + len(row.draft_token_ids) or not row.samples for row in plan.rows
        )
        self._lap("commit plan")
        with self._annotate(f"step {plan.step_id}"):
            handle = inner.launch(plan)
        return HeardHandle(handle, self.landed)

    def landed(self, result: StepResult) -> None:
        """A step's result is there. Its phases follow each other from the launch on."""
        record = self._current
        if record is None or record.step_id != result.step_id:
            return
        self._has_landed = True
        record.num_accepted_tokens = sum(row.num_accepted_tokens for row in result.rows)
        start_s = self._last_s
        self._lap("launch")
        for name, duration_s in result.times_s.items():
            record.phases.append(Phase(name, start_s, start_s + duration_s, is_inner=True))
            start_s += duration_s

    def committed(self) -> None:
        """A step's tokens have entered their requests, and the scheduler knows."""
        if self._current is not None:
            self._lap("commit")

    def _lap(self, phase: str) -> None:
        assert self._current is not None, f"{phase} outside a step"
        now_s = self.now()
        self._current.phases.append(Phase(phase, self._last_s, now_s))
        self._last_s = now_s


@final
class _TimedScheduler(Scheduler):
    def __init__(self, inner: Scheduler, timeline: StepTimeline) -> None:
        self._inner = inner
        self._timeline = timeline

    def schedule(self, view: SchedulerView, ledger: Ledger) -> SchedulePlan:
        if not self._timeline.is_recording:
            return self._inner.schedule(view, ledger)
        return self._timeline.schedule(self._inner, view, ledger)

    def observe(self, event: SchedulerEvent) -> None:
        self._inner.observe(event)
        if isinstance(event, StepLanded):
            self._timeline.committed()


@final
class _TimedExecutor(Executor):
    def __init__(self, inner: Executor, timeline: StepTimeline) -> None:
        self._inner = inner
        self._timeline = timeline

    def model_facts(self) -> ModelFacts:
        return self._inner.model_facts()

    def launch(self, plan: StepPlan) -> StepHandle:
        return self._timeline.launch(self._inner, plan)

    def close(self) -> None:
        self._inner.close()
