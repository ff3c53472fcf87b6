"""Measures real steps of a model at many shapes, for a device preset of `executor=simulated`."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from pydantic import PrivateAttr

from tokenloom.batch import StepPlan
from tokenloom.clock import Clock, MonotonicClock
from tokenloom.compose import ComposedConfig
from tokenloom.engine import Engine
from tokenloom.errors import ConfigError
from tokenloom.executors.device_presets import DevicePreset, ModelShape
from tokenloom.executors.step_time import AttentionSpan, StepCosts, step_shape
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.executor import Executor, ExecutorConfig, ExecutorContext, ModelFacts, StepHandle
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.model_config import ModelConfig
from tokenloom.request_factory import RequestFactory
from tokenloom.sampling_params import SamplingParams
from tokenloom.simulation.prompts import PromptMaker
from tokenloom.simulation.step_time_fit import MeasuredStep
from tokenloom.simulation.timed_request import TimedRequest

__all__ = ["CalibrationPlan", "Measured", "Workout", "describe_device", "measure_steps", "plan_workouts", "recorded"]

_NUM_OUTPUTS = 6
"""Tokens that the first request of a workout generates; later ones some more, so that rows become fewer by and by."""
_NUM_ENDINGS = 16
"""Steps at which requests of a workout end, at most."""
_MOST_LATE = 8
_DENSE_COUNTS = (3, 5, 9, 12)
"""Requests of workouts beside the powers of 2, with the shortest prompts: the cost of the first rows is no line."""
_SPREAD = 0.5
"""The shortest prompt of a workout is so much shorter than the longest."""
_GOLDEN_RATIO = 0.5 * (math.sqrt(5.0) - 1.0)
_SURE_TOKENS, _MOST_TOKENS = 4, 16
"""Times the longest prompt: tokens of the largest workout that is run in any case, and of those that may be."""


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """How much to measure: for how long, up to which prompt, with how many requests at once."""

    seconds: float
    longest_prompt: int
    most_running: int


@dataclass(frozen=True, slots=True)
class Workout:
    """Requests that start together, but for some that join one by one, with prompts of half to the whole of a length.

    As in a real batch, none is like the next one, and they end one after the other: kernels that pad rows to the
    longest have something to pad, and there are steps with any number of rows, and with a prompt among them.
    """

    num_requests: int
    num_prompt_tokens: int

    def requests(self) -> list[TimedRequest]:
        """The requests; equal workouts give equal ones."""
        num_endings = min(self.num_requests, _NUM_ENDINGS)
        return [
            TimedRequest(
                arrival_s=0.0,
                # Fractions of multiples of the golden ratio lie evenly however many there are.
                num_prompt_tokens=math.ceil(self.num_prompt_tokens * (1.0 - _SPREAD * (number * _GOLDEN_RATIO % 1.0))),
                num_output_tokens=_NUM_OUTPUTS + number * num_endings // self.num_requests,
            )
            for number in range(self.num_requests)
        ]

    @property
    def num_late(self) -> int:
        """How many of the last ones join later, one in each step."""
        return min(self.num_requests // 4, _MOST_LATE)

    @property
    def num_tokens(self) -> int:
        """Of all its requests, outputs included."""
        return sum(request.num_prompt_tokens + request.num_output_tokens for request in self.requests())


@dataclass(frozen=True, slots=True)
class Measured:
    """Steps to fit, and steps of other workouts to check the fit with."""

    fitted: list[MeasuredStep]
    held_out: list[MeasuredStep]


def recorded(config: ComposedConfig) -> tuple[ComposedConfig, RecordingConfig]:
    """The same configuration with an executor that keeps its plans."""
    recording = RecordingConfig(inner=config.engine.executor)
    choice = PluginChoice("executor", config.engine.executor.name, recording)
    return replace(config, engine=config.engine.model_copy(update={"executor": choice})), recording


@final
class RecordingConfig(ExecutorConfig):
    """Settings of an executor that keeps the plan of the last step."""

    inner: PluginChoice
    _plans: list[StepPlan] = PrivateAttr(default_factory=list)

    def build(self, context: ExecutorContext) -> Executor:
        return _Recording(self.inner.build(context), self._plans)

    def take_plans(self) -> list[StepPlan]:
        """Plans since the last call."""
        plans = list(self._plans)
        self._plans.clear()
        return plans


@final
class _Recording(Executor):
    def __init__(self, inner: Executor, plans: list[StepPlan]) -> None:
        self._inner = inner
        self._plans = plans

    def model_facts(self) -> ModelFacts:
        return self._inner.model_facts()

    def launch(self, plan: StepPlan) -> StepHandle:
        self._plans.append(plan)
        return self._inner.launch(plan)

    def close(self) -> None:
        self._inner.close()


def plan_workouts(engine: Engine, plan: CalibrationPlan) -> list[Workout]:
    """Workouts that fit this engine, the cheapest first; prompt lengths meet numbers of requests."""
    capacity = engine.limits.max_kv_tokens
    room = min(capacity, engine.limits.max_model_len) - _NUM_OUTPUTS - _NUM_ENDINGS
    longest = min(plan.longest_prompt, room)
    prompts = [length for length in _powers(4, 16) if length < longest] + [longest]
    counts = [count for count in _powers(2, 1) if count < plan.most_running] + [plan.most_running]
    workouts = [Workout(count, length) for count, length in itertools.product(counts, prompts)]
    workouts += [Workout(count, prompts[0]) for count in _DENSE_COUNTS if count < plan.most_running]
    fitting = [w for w in workouts if w.num_tokens <= min(capacity, _MOST_TOKENS * plan.longest_prompt)]
    if len(fitting) < 4:
        raise ConfigError(
            f"only {len(fitting)} workouts fit {capacity} tokens of KV memory and longest_prompt="
            f"{plan.longest_prompt}; raise longest_prompt, most_running or cache.num_blocks"
        )
    return sorted(fitting, key=lambda workout: workout.num_tokens)


def _powers(base: int, first: int) -> Iterator[int]:
    return itertools.takewhile(lambda value: value < 2**20, (first * base**n for n in itertools.count()))


def measure_steps(
    engine: Engine,
    recording: RecordingConfig,
    workouts: Sequence[Workout],
    plan: CalibrationPlan,
    spans: Sequence[AttentionSpan],
    progress: Callable[[float], None],
    clock: Clock | None = None,
) -> Measured:
    """Runs workouts in turn, as long as the next one will be over in time. Every fourth one is held out.

    Small ones run once in any case. Large ones are worth most, since real batches are large, and come next.

    Args:
        engine: built with `recording`; idle.
        recording: knows what each step did.
        workouts: from `plan_workouts`.
        plan: how much to measure.
        spans: how far the layers look back, of the preset to be made.
        progress: told the seconds so far.
        clock: real time by default.
    """
    gauge = _Gauge(engine, recording, spans, MonotonicClock() if clock is None else clock)
    measured, took_s = Measured([], []), dict[Workout, float]()
    start_s = gauge.now()
    gauge.run(workouts[0])  # warms up
    is_first_round, num_run = True, 1
    while num_run:
        num_run = 0
        for index, workout in enumerate(workouts):
            before_s = gauge.now()
            progress(before_s - start_s)
            is_sure = is_first_round and workout.num_tokens <= _SURE_TOKENS * plan.longest_prompt
            if not is_sure and before_s - start_s + _expected_s(workout, took_s) >= plan.seconds:
                continue
            (measured.held_out if index % 4 == 2 else measured.fitted).extend(gauge.run(workout))
            took_s[workout] = gauge.now() - before_s
            num_run += 1
        is_first_round = False
    return measured


def _expected_s(workout: Workout, took_s: Mapping[Workout, float]) -> float:
    """What it took, or what its tokens take at the pace of the largest one so far."""
    if workout in took_s:
        return took_s[workout]
    largest = max(took_s, key=lambda other: other.num_tokens)
    return took_s[largest] * workout.num_tokens / largest.num_tokens


@final
class _Gauge:
    """An engine with a watch beside it."""

    def __init__(
        self, engine: Engine, recording: RecordingConfig, spans: Sequence[AttentionSpan], clock: Clock
    ) -> None:
        self._engine = engine
        self._recording = recording
        self._spans = spans
        self._clock = clock
        self._factory = RequestFactory(engine.limits, (), 0, MonotonicClock())
        self._prompts = PromptMaker(engine.facts.vocab_size)

    def now(self) -> float:
        return self._clock.now()

    def run(self, workout: Workout) -> list[MeasuredStep]:
        """Runs a workout to its end; returns what each step did, and how long it took."""
        coming = deque(workout.requests())
        while len(coming) > workout.num_late:
            self._add(coming.popleft())
        steps: list[MeasuredStep] = []
        self._recording.take_plans()
        while self._engine.has_work():
            start_s = self.now()
            self._engine.step()
            duration_s = self.now() - start_s
            (plan,) = self._recording.take_plans()
            steps.append(MeasuredStep(step_shape(plan, self._spans), duration_s))
            if coming:
                self._add(coming.popleft())
        return steps

    def _add(self, timed: TimedRequest) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=timed.num_output_tokens, ignore_eos=True)
        self._engine.add_request(self._factory.make(self._prompts.make(timed), params)[0])


def describe_device(facts: ModelFacts, model_path: Path, config: ComposedConfig, name: str) -> DevicePreset:
    """A preset with everything but the costs, which are 0."""
    checkpoint = open_checkpoint(model_path)
    try:
        model: ModelConfig = checkpoint.config
    finally:
        checkpoint.close()
    device = torch.device(facts.device)
    return DevicePreset.model_validate(
        {
            "name": name,
            "source": "",
            "device": device.type,
            "dtype": facts.dtype,
            "quant": config.engine.quant.name,
            "memory_bytes": facts.memory["available"] + facts.memory["weights"],
            "host_bytes_per_s": _copy_bytes_per_s(device),
            "model": ModelShape(
                num_layers=model.num_layers,
                hidden_size=model.hidden_size,
                intermediate_size=model.intermediate_size,
                num_heads=model.num_heads,
                num_kv_heads=model.num_kv_heads,
                head_dim=model.head_dim,
                vocab_size=model.vocab_size,
                max_model_len=facts.max_model_len,
                weight_bytes=facts.memory["weights"],
                windows=model.windows if any(model.windows) else (),
            ),
            "costs": StepCosts(step_s=0.0, prefill_token_s=0.0, decode_row_s=0.0, kv_byte_s=0.0),
        }
    )


def _copy_bytes_per_s(device: torch.device) -> float:
    """Bandwidth of copies to host memory: the best of a few."""
    source = torch.ones(2**25, dtype=torch.uint8, device=device)
    target = torch.empty_like(source, device="cpu", pin_memory=device.type == "cuda")
    times: list[float] = []
    for _ in range(5):
        start_s = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - start_s)
    return float(source.numel() / min(times))
