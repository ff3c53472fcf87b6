"""Measures real steps of a model at many shapes, for a device preset of `executor=simulated`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from pydantic import PrivateAttr

from tokenloom.batch import StepPlan
from tokenloom.clock import MonotonicClock
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
"""Tokens that each request of a workout generates: as many decode steps, less one."""


@dataclass(frozen=True, slots=True)
class CalibrationPlan:
    """How much to measure: for how long, up to which prompt, with how many requests at once."""

    seconds: float
    longest_prompt: int
    most_running: int


@dataclass(frozen=True, slots=True)
class Workout:
    """Requests of one length that start together."""

    num_requests: int
    num_prompt_tokens: int


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


def plan_workouts(engine: Engine, plan: CalibrationPlan, max_num_seqs: int) -> list[Workout]:
    """Workouts that fit this engine, the cheapest first; every prompt length meets every number of requests."""
    room = min(engine.limits.max_kv_tokens, engine.limits.max_model_len) - _NUM_OUTPUTS
    longest = min(plan.longest_prompt, room)
    prompts = [length for length in _powers(4, 16) if length < longest] + [longest]
    most = min(plan.most_running, max_num_seqs)
    counts = [count for count in _powers(2, 1) if count < most] + [most]
    capacity = engine.limits.max_kv_tokens
    workouts = [
        Workout(count, length)
        for count, length in itertools.product(counts, prompts)
        if count * (length + 2 * _NUM_OUTPUTS) <= min(capacity, 4 * plan.longest_prompt)
    ]
    if len(workouts) < 4:
        raise ConfigError(
            f"only {len(workouts)} workouts fit {capacity} tokens of KV memory and longest_prompt="
            f"{plan.longest_prompt}; raise longest_prompt, most_running or cache.num_blocks"
        )
    return sorted(workouts, key=lambda workout: workout.num_requests * workout.num_prompt_tokens)


def _powers(base: int, first: int) -> Iterator[int]:
    return itertools.takewhile(lambda value: value < 2**20, (first * base**n for n in itertools.count()))


def measure_steps(
    engine: Engine,
    recording: RecordingConfig,
    workouts: Sequence[Workout],
    seconds: float,
    spans: Sequence[AttentionSpan],
    progress: Callable[[float], None],
) -> Measured:
    """Runs workouts in turn until the time is over, all of them once at least. Every fourth one is held out.

    Args:
        engine: built with `recording`; idle.
        recording: knows what each step did.
        workouts: from `plan_workouts`.
        seconds: how long to go on.
        spans: how far the layers look back, of the preset to be made.
        progress: told the seconds so far.
    """
    factory = RequestFactory(engine.limits, (), 0, MonotonicClock())
    prompts = PromptMaker(engine.facts.vocab_size)
    measured = Measured([], [])
    start_s = time.perf_counter()
    _run(engine, recording, factory, prompts, workouts[0], spans)  # warms up
    for number in itertools.count():
        index = number % len(workouts)
        elapsed_s = time.perf_counter() - start_s
        progress(elapsed_s)
        if number >= len(workouts) and elapsed_s >= seconds:
            return measured
        steps = _run(engine, recording, factory, prompts, workouts[index], spans)
        (measured.held_out if index % 4 == 2 else measured.fitted).extend(steps)
    raise AssertionError("unreachable")


def _run(
    engine: Engine,
    recording: RecordingConfig,
    factory: RequestFactory,
    prompts: PromptMaker,
    workout: Workout,
    spans: Sequence[AttentionSpan],
) -> list[MeasuredStep]:
    params = SamplingParams(temperature=0.0, max_tokens=_NUM_OUTPUTS, ignore_eos=True)
    timed = TimedRequest(0.0, workout.num_prompt_tokens, _NUM_OUTPUTS)
    for _ in range(workout.num_requests):
        engine.add_request(factory.make(prompts.make(timed), params)[0])
    steps: list[MeasuredStep] = []
    recording.take_plans()
    while engine.has_work():
        start_s = time.perf_counter()
        engine.step()
        duration_s = time.perf_counter() - start_s
        (plan,) = recording.take_plans()
        steps.append(MeasuredStep(step_shape(plan, spans), duration_s))
    return steps


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
