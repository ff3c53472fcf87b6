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
from tokenloom.errors import ConfigError, OverloadedError, RequestError, TokenloomError
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
    """How a replay went.

    Attributes:
        num_equal: plans that were equal.
        divergence: the first one that was not; None if all were.
        num_unfinished: requests whose end the trace does not tell, as far as it was replayed.
    """

    num_equal: int
    divergence: Divergence | None
    num_unfinished: int


def replay_trace(trace: TraceFile, registry: Registry | None = None) -> TraceReplay:
    """Replays a trace up to its end or the first divergence.

    Raises:
        ConfigError: a line of the trace is damaged or contradicts another one, there is no plan in it, or a plugin
            knows its settings no more.
        PluginError: a plugin of the trace is not installed.
    """
    plugins = default_registry() if registry is None else registry
    try:
        config = validate({**trace.header["config"], "trace": {}}, {}, plugins, None).engine
    except ConfigError as error:
        raise ConfigError(f"{trace.path}:1: its config cannot be used here: {error}") from error
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
        self._num_outputs: dict[str, int] = {}

    def run(self) -> TraceReplay:
        """Replays up to the end or the first divergence."""
        divergence: Divergence | None = None
        plan: Record | None = None
        for number, record in self._trace.numbered_records():
            if record["event"] == "plan":
                if plan is not None:
                    raise self._trace.fault(number, f"a plan, but that of step {plan['step']} has no result yet")
                plan = record
            elif record["event"] == "result":
                fault = _result_fault(plan, record)
                if plan is None or fault is not None:
                    raise self._trace.fault(number, f"a result, {fault}")
                divergence, plan = self._step(plan, record), None
            else:
                self._apply(number, record)
            if divergence is not None:
                break
        if divergence is None and plan is not None:
            # The run ended in mid-step: what was planned is known, what came of it is not.
            divergence = self._step(plan, None)
        if divergence is None and self._sink.num_equal == 0:
            raise ConfigError(
                f"{self._trace.path}: the trace holds no plan, so there is nothing to replay: its run ended before the "
                "first step, or the file was cut short; record it anew"
            )
        return TraceReplay(self._sink.num_equal, divergence, self._engine.num_running + self._engine.num_waiting)

    def _apply(self, number: int, record: Record) -> None:
        if record["event"] == "arrive":
            self._add(number, record)
        elif record["reason"] == FinishReason.STOP:
            num_kept, num_known = record["num_output_tokens"], self._num_outputs.get(record["request"], 0)
            if num_kept > num_known:
                raise self._trace.fault(number, f"num_output_tokens: {num_kept} of {num_known} tokens cannot be kept")
            self._engine.truncate(record["request"], num_kept, "")
        else:
            self._engine.abort(record["request"])

    def _add(self, number: int, record: Record) -> None:
        longest = self._engine.limits.max_total_tokens
        if record["max_total_tokens"] > longest:
            raise ConfigError(
                f"{self._trace.path}:{number}: max_total_tokens: {record['max_total_tokens']} exceeds the {longest} "
                "tokens that facts and config of the header allow; record the trace anew"
            )
        try:
            self._engine.add_request(request_from(record))
            self._num_outputs[record["id"]] = 0
        except (RequestError, OverloadedError) as error:
            raise ConfigError(f"{self._trace.path}:{number}: the replay cannot take this request: {error}") from error

    def _step(self, plan: Record, result: Record | None) -> Divergence | None:
        self._sink.expected, self._executor.record = plan, result
        before = self._sink.num_equal
        try:
            for output in self._engine.step():
                known = self._num_outputs.get(output.request_id, 0)
                self._num_outputs[output.request_id] = known + len(output.token_ids)
        except _DivergedError as found:
            return found.divergence
        except ConfigError:
            raise  # the clock reads ahead, and has met a line that is damaged
        except TokenloomError as error:
            if result is None and self._sink.num_equal > before:
                return None
            return Divergence(plan["step"], "plan", None, f"the replay failed: {error}", plan, None)
        if self._sink.num_equal == before:
            return Divergence(plan["step"], "plan", None, "the replay has nothing to do in this step", plan, None)
        return None


def _result_fault(plan: Record | None, result: Record) -> str | None:
    """Why a result is not that of the plan before it."""
    if plan is None:
        return f"but step {result['step']} has no plan"
    if result["step"] != plan["step"]:
        return f"but of step {result['step']}, and the plan before it is of step {plan['step']}"
    planned, found = (
        [row[key] for row in record["rows"]] for record, key in ((plan, "request"), (result, "request_id"))
    )
    if planned != found:
        return f"but for the requests {found}, and the plan before it is for {planned}"
    for row, planned_row in zip(result["rows"], plan["rows"], strict=True):
        num_accepted, num_drafts = row.get("num_accepted_tokens", 0), len(planned_row.get("drafts", ()))
        if num_accepted > num_drafts:
            return f"but with {num_accepted} accepted drafts of {row['request_id']}, and the plan has {num_drafts}"
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
