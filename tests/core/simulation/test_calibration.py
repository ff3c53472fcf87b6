"""Calibrating machines that follow a known law, no linear one: what the preset says of other workloads."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import pytest
import yaml

from tokenloom.batch import StepPlan
from tokenloom.clock import VirtualClock
from tokenloom.compose import ComposedConfig, compose_config
from tokenloom.engine_builder import build_engine
from tokenloom.executors.device_presets import load_preset
from tokenloom.executors.step_time import StepCosts, step_shape
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.executor import Executor, ExecutorConfig, ExecutorContext, ModelFacts, StepHandle
from tokenloom.simulation.calibration import CalibrationPlan, Workout, measure_steps, plan_workouts, recorded
from tokenloom.simulation.measurements import SloTargets
from tokenloom.simulation.replay import simulate
from tokenloom.simulation.step_time_fit import averages, fit_costs
from tokenloom.simulation.timed_request import TimedRequest

FREE = StepCosts(step_s=0.0, prefill_token_s=0.0, decode_row_s=0.0, kv_byte_s=0.0)
SPANS = load_preset("cpu_2core_135m").attention_spans
PLAN = CalibrationPlan(seconds=100.0, longest_prompt=1024, most_running=64)


@final
@dataclass(frozen=True)
class Machine:
    """A law: a step's products take their arithmetic, or as long as reading the weights; attention pads rows.

    Attributes:
        weights_s: reading them once.
        token_s: arithmetic of a token.
        exponent: below 1, many tokens take less than so many times the time of one.
        row_s: of each request that samples.
        kv_byte_s, pair_s: attention.
        block: products take as long as with the next multiple of so many tokens.
        padded_rows: so many rows, sorted by length, read as much as the longest of them.
        noise: every step takes so much longer by chance, on average.
    """

    weights_s: float
    token_s: float
    exponent: float = 1.0
    row_s: float = 3e-4
    kv_byte_s: float = 1.3e-10
    pair_s: float = 2e-7
    block: int = 1
    padded_rows: int = 1
    noise: float = 0.0

    def duration_s(self, plan: StepPlan, draw: random.Random) -> float:
        shape = step_shape(plan, SPANS)
        num_tokens = shape.num_prefill_tokens + shape.num_decode_rows
        num_blocks = math.ceil(num_tokens / self.block)
        contexts = [(row.num_scheduled_tokens, row.num_computed_tokens + row.num_scheduled_tokens) for row in plan.rows]
        decoding = sorted((length for count, length in contexts if count == 1), reverse=True)
        num_read = sum(decoding[index - index % self.padded_rows] for index in range(len(decoding)))
        num_read += sum(length for count, length in contexts if count > 1)
        products_s = max(self.weights_s, self.token_s * math.pow(num_blocks * self.block, self.exponent))
        attention_s = self.kv_byte_s * num_read * SPANS[0].bytes_per_token + self.pair_s * shape.num_attention_pairs
        total_s = 0.002 + products_s + self.row_s * shape.num_decode_rows + attention_s
        return total_s * (1.0 + self.noise * draw.expovariate(1.0))


MACHINES = {
    "reads weights up to 15 rows": Machine(weights_s=0.02, token_s=1.3e-3),
    "pads": Machine(weights_s=0.012, token_s=6e-4, padded_rows=8),
    "slow with few tokens": Machine(weights_s=0.001, token_s=4e-3, exponent=0.8),
    "noisy": Machine(weights_s=0.02, token_s=1.3e-3, padded_rows=8, noise=0.15),
    "reads weights all the time": Machine(weights_s=0.005, token_s=3.5e-5, row_s=1e-5, kv_byte_s=4e-13, pair_s=1e-9),
}


@final
class MachineConfig(ExecutorConfig):
    """Another executor, whose steps take no time, on a machine."""

    inner: PluginChoice
    machine: Machine

    def build(self, context: ExecutorContext) -> Executor:
        assert isinstance(context.clock, VirtualClock)
        return OnMachine(self.inner.build(context), self.machine, context.clock)


@final
class OnMachine(Executor):
    def __init__(self, inner: Executor, machine: Machine, clock: VirtualClock) -> None:
        self._inner, self._machine, self._clock = inner, machine, clock
        self._draw = random.Random(1)

    def model_facts(self) -> ModelFacts:
        return self._inner.model_facts()

    def launch(self, plan: StepPlan) -> StepHandle:
        handle = self._inner.launch(plan)
        self._clock.advance(self._machine.duration_s(plan, self._draw))
        return handle

    def close(self) -> None:
        self._inner.close()


def on_preset(folder: Path, costs: StepCosts, *words: str) -> ComposedConfig:
    path = folder / f"preset-{len(list(folder.iterdir()))}.yaml"
    path.write_text(yaml.safe_dump(load_preset("cpu_2core_135m").model_copy(update={"costs": costs}).model_dump()))
    engine = ["executor=simulated", f"executor.device={path}", "cache=none", "cache.num_blocks=2000"]
    return compose_config([*engine, *words])


def on_machine(folder: Path, machine: Machine, *words: str) -> ComposedConfig:
    config = on_preset(folder, FREE, *words)
    executor = MachineConfig(inner=config.engine.executor, machine=machine)
    choice = PluginChoice("executor", "simulated", executor)
    return replace(config, engine=config.engine.model_copy(update={"executor": choice}))


def calibrated(folder: Path, machine: Machine) -> StepCosts:
    config, recording = recorded(on_machine(folder, machine))
    clock = VirtualClock()
    engine = build_engine(config.engine, clock=clock)
    measured = measure_steps(engine, recording, plan_workouts(engine, PLAN), PLAN, SPANS, lambda _: None, clock)
    engine.close()
    assert clock.now() <= PLAN.seconds
    return fit_costs(averages(measured.fitted))


def mixed(count: int) -> list[TimedRequest]:
    draw = random.Random(3)
    return [TimedRequest(0.0, draw.randrange(20, 400), draw.choice([20, 40, 80])) for _ in range(count)]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
def test_a_calibrated_preset_tells_the_time_of_other_workloads(machine: Machine, tmp_path: Path) -> None:
    costs = calibrated(tmp_path, machine)
    # What a run takes on average is known; one with noise of its own would only blur it.
    quiet, late = replace(machine, noise=0.0), 1.0 + machine.noise
    for count in (64, 6):
        runs = [
            simulate(config.engine, mixed(count), SloTargets(2.0, 0.1)).result
            for config in (on_machine(tmp_path, quiet), on_preset(tmp_path, costs))
        ]
        real, found = (run["duration_s"] for run in runs)
        assert found == pytest.approx(late * real, rel=0.04)
        real, found = (run["latency"]["tpot_s"]["p50"] for run in runs)
        assert found == pytest.approx(late * real, rel=0.06)


def test_a_workout_has_every_number_of_rows_and_prompts_among_them(tmp_path: Path) -> None:
    config, recording = recorded(on_machine(tmp_path, MACHINES["pads"]))
    engine = build_engine(config.engine, clock=VirtualClock())
    workout = Workout(16, 64)
    lengths = [request.num_prompt_tokens for request in workout.requests()]
    assert (lengths[0], len(set(lengths))) == (64, 16)
    assert min(lengths) >= 32
    plan = replace(PLAN, seconds=0.0)
    measured = measure_steps(engine, recording, [workout], plan, SPANS, lambda _: None, VirtualClock())
    shapes = [step.shape for step in (*measured.fitted, *measured.held_out)]
    assert {shape.num_decode_rows for shape in shapes if not shape.num_prefill_tokens} >= set(range(1, 13))
    # Twelve start together; the others join one by one, while those decode.
    mixed_steps = [shape for shape in shapes if shape.num_prefill_tokens and shape.num_decode_rows]
    assert [shape.num_decode_rows for shape in mixed_steps] == [12, 13, 14, 15]
    assert [shape.num_prefill_tokens for shape in mixed_steps] == lengths[12:]


def test_large_workouts_run_as_far_as_time_allows(tmp_path: Path) -> None:
    """Small ones run once in any case, and nothing is begun that would not be over in time."""
    machine = Machine(weights_s=0.02, token_s=1.3e-3)
    ran: list[set[int]] = []
    for seconds in (0.0, 120.0):
        config, recording = recorded(on_machine(tmp_path, machine))
        clock = VirtualClock()
        engine = build_engine(config.engine, clock=clock)
        plan = replace(PLAN, seconds=seconds)
        measured = measure_steps(engine, recording, plan_workouts(engine, plan), plan, SPANS, lambda _: None, clock)
        ran.append({step.shape.num_kv_bytes for step in (*measured.fitted, *measured.held_out)})
        assert seconds == 0.0 or 0.9 * seconds < clock.now() <= seconds
    assert ran[0] < ran[1]
    assert max(ran[1]) > 2 * max(ran[0])


def test_a_calibrated_preset_tells_what_drafts_bring(tmp_path: Path) -> None:
    """Of a machine whose products take rows by four: five rows cost far more than four."""
    machine = Machine(weights_s=1e-3, token_s=5e-4, block=4, row_s=1e-4)
    costs = calibrated(tmp_path, machine)
    for num_streams in (1, 8):
        plain_s, predicted_plain_s = durations_s(tmp_path, machine, costs, num_streams)
        for num_drafts in (1, 2, 4, 8):
            drafter = ("spec_decode=synthetic", f"spec_decode.policy.num_draft_tokens={num_drafts}")
            real_s, predicted_s = durations_s(
                tmp_path, machine, costs, num_streams, *drafter, "spec_decode.acceptance=[0.9]"
            )
            assert predicted_plain_s / predicted_s == pytest.approx(plain_s / real_s, rel=0.1), (
                num_streams,
                num_drafts,
            )


def durations_s(folder: Path, machine: Machine, costs: StepCosts, num_streams: int, *words: str) -> tuple[float, float]:
    """How long some requests take on a machine, and on a preset of these costs."""
    requests = [TimedRequest(0.0, 32, 96)] * num_streams
    engines = on_machine(folder, machine, *words), on_preset(folder, costs, *words)
    real, found = (simulate(config.engine, requests, SloTargets(2.0, 0.1)).result for config in engines)
    return real["duration_s"], found["duration_s"]
