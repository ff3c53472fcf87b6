"""Makes the decisions of a trace again: the recorded arrivals, results and times, through scheduler and cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from tokenloom.batch import StepPlan
from tokenloom.clock import Clock
from tokenloom.compose.validation import validate
from tokenloom.engine_builder import wire_engine
from tokenloom.engine_config import EngineConfig
from tokenloom.errors import TokenloomError
from tokenloom.interfaces.executor import Executor, FinishedStep, ModelFacts, StepHandle
from tokenloom.plugins import Registry, default_registry
from tokenloom.request import FinishReason
from tokenloom.simulation.trace_compare import Divergence, first_difference
from tokenloom.tracing.records import Record, facts_from, request_from, result_from
from tokenloom.tracing.tap import DecisionSink, DecisionTap
from tokenloom.tracing.trace_file import TraceFile

__all__ = ["TraceReplay", "replay_trace"]


@final
@dataclass(frozen=True, slots=True)
class TraceReplay:
    """How a replay went: plans that were equal, and the first one that was not."""

    num_equal: int
    divergence: Divergence | None


def replay_trace(trace: TraceFile, registry: Registry | None = None) -> TraceReplay:
    """Replays a trace up to its end or the first divergence.

    Raises:
        ConfigError, PluginError: a plugin of the trace is not installed, or knows its settings no more.
    """
    plugins = default_registry() if registry is None else registry
    config = validate({**trace.header["config"], "trace": {}}, {}, plugins, None).engine
    return _Replay(trace, config, plugins).run()


class _DivergedError(TokenloomError):
    """Ends a step in the middle; the engine lets errors of this tree pass."""

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence.detail)
        self.divergence = divergence


@final
class _Replay:
    """One engine, whose executor and clock play the trace."""

    def __init__(self, trace: TraceFile, config: EngineConfig, registry: Registry) -> None:
        self._trace = trace
        self._sink = _Comparison()
        self._executor = _ReplayExecutor(facts_from(trace.header["facts"]))
        tap = DecisionTap(self._sink)
        clock = _ReplayClock(trace.records())
        self._engine = wire_engine(config, self._executor, clock, registry, taps=(tap,), on_close=lambda _: None)

    def run(self) -> TraceReplay:
        """Replays up to the end or the first divergence."""
        divergence: Divergence | None = None
        plan: Record | None = None
        for record in self._trace.records():
            if record["event"] == "plan":
                plan = record
                continue
            if record["event"] == "result":
                assert plan is not None, f"step {record['step']} has a result, but no plan"
                divergence, plan = self._step(plan, record), None
            else:
                self._apply(record)
            if divergence is not None:
                break
        if divergence is None and plan is not None:
            # The run ended in mid-step: what was planned is known, what came of it is not.
            divergence = self._step(plan, None)
        return TraceReplay(self._sink.num_equal, divergence)

    def _apply(self, record: Record) -> None:
        if record["event"] == "arrive":
            self._engine.add_request(request_from(record))
        elif record["reason"] == FinishReason.STOP:
            self._engine.truncate(record["request"], record["num_output_tokens"], "")
        else:
            self._engine.abort(record["request"])

    def _step(self, plan: Record, result: Record | None) -> Divergence | None:
        self._sink.expected, self._executor.record = plan, result
        before = self._sink.num_equal
        try:
            self._engine.step()
        except _DivergedError as found:
            return found.divergence
        except TokenloomError as error:
            if result is None and self._sink.num_equal > before:
                return None
            return Divergence(plan["step"], "plan", None, f"the replay failed: {error}", plan, None)
        if self._sink.num_equal == before:
            return Divergence(plan["step"], "plan", None, "the replay has nothing to do in this step", plan, None)
        return None


@final
class _Comparison(DecisionSink):
    """Compares each plan with the recorded one. `expected` is that of the step under way."""

    def __init__(self) -> None:
        self.expected: Record = {}
        self.num_equal = 0

    def take(self, event: str, record: Record) -> None:
        if event != "plan":
            return
        found = first_difference(self.expected, record)
        if found is not None:
            raise _DivergedError(Divergence(self.expected["step"], "plan", *found, self.expected, record))
        self.num_equal += 1

    def close(self) -> None:
        """Nothing is held."""


@final
class _ReplayExecutor(Executor):
    """Answers each step with the recorded result. `record` is that of the step under way; None if there is none."""

    def __init__(self, facts: ModelFacts) -> None:
        self._facts = facts
        self.record: Record | None = None

    def model_facts(self) -> ModelFacts:
        return self._facts

    def launch(self, plan: StepPlan) -> StepHandle:
        if self.record is None:
            raise TokenloomError(f"step {plan.step_id} never landed")
        return FinishedStep(result_from(self.record))

    def close(self) -> None:
        """Nothing is held."""


@final
class _ReplayClock(Clock):
    """Gives the recorded readings, in order; behind the last one, that one."""

    def __init__(self, records: Iterator[Record]) -> None:
        self._records = records
        self._readings: deque[float] = deque()
        self._now_s = 0.0
        self._num_left = 0

    def now(self) -> float:
        while self._num_left == 0:
            if not self._readings:
                record = next(self._records, None)
                if record is None:
                    return self._now_s
                self._readings.extend(record["clock"])
                continue
            self._now_s, self._num_left = self._readings.popleft(), int(self._readings.popleft())
        self._num_left -= 1
        return self._now_s
