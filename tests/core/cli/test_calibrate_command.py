"""`tokenloom calibrate` on a tiny model, and what it writes in use. Nothing here says how long anything takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny_model import write_tiny_llama
from tokenloom.clock import VirtualClock
from tokenloom.compose import compose_config
from tokenloom.engine_builder import build_engine
from tokenloom.executors.device_presets import load_preset
from tokenloom.executors.step_time import AttentionSpan
from tokenloom.llm import LLM
from tokenloom.simulation.calibration import CalibrationPlan, measure_steps, plan_workouts, recorded

RunCli = Callable[..., tuple[int, str, str]]
SMALL = ("cache.num_blocks=64", "scheduler.max_num_batched_tokens=48", "engine.num_threads=1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model"), with_tokenizer=True)


def test_a_preset_is_written_that_the_simulator_takes(run_cli: RunCli, model: Path, tmp_path: Path) -> None:
    target = tmp_path / "mine.yaml"
    code, out, err = run_cli(
        "calibrate",
        f"model={model}",
        *SMALL,
        f"output={target}",
        "label=tiny",
        "seconds=0.01",
        "longest_prompt=100",
        "most_running=4",
    )
    assert (code, err) == (0, "")
    assert "steps held out" in out
    preset = load_preset(str(target))
    assert (preset.name, preset.device, preset.dtype, preset.quant) == ("tiny", "cpu", "float32", "none")
    assert (preset.model.num_layers, preset.model.num_kv_heads, preset.model.head_dim) == (2, 2, 16)
    assert preset.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    assert preset.model.max_model_len == 512
    assert preset.costs.step_s > 0.0
    assert "error on steps held out" in preset.source
    words = ("workload=generated", "limit=5", "prompt_tokens=20", "output_tokens=4", "cache.num_blocks=64")
    code, out, err = run_cli("simulate", *words, f"executor.device={target}")
    assert (code, err) == (0, "")
    assert "5 of 5 completed" in out


def test_a_preset_knows_the_windows_of_its_model(run_cli: RunCli, tmp_path: Path) -> None:
    settings = {
        "architectures": ["SmolLM3ForCausalLM"],
        "model_type": "smollm3",
        "use_sliding_window": True,
        "sliding_window": 24,
        "no_rope_layer_interval": 3,
    }
    model = write_tiny_llama(tmp_path / "model", num_layers=3, with_tokenizer=True, extra_config=settings)
    target = tmp_path / "mine.yaml"
    quick = ("seconds=0.01", "longest_prompt=100", "most_running=4", f"output={target}")
    code, _, err = run_cli("calibrate", f"model={model}", *SMALL, *quick)
    assert (code, err) == (0, "")
    preset = load_preset(str(target))
    assert preset.model.windows == (None, None, 24)
    words = ["executor=simulated", f"executor.device={target}", "cache.num_blocks=64"]
    real = LLM(config=compose_config([f"model={model}", *SMALL]))
    facts = real.engine.facts
    real.close()
    simulated = build_engine(compose_config(words).engine, clock=VirtualClock())
    assert simulated.facts.kv_groups == facts.kv_groups
    assert simulated.facts.num_blocks == facts.num_blocks
    simulated.close()


def test_every_workout_runs_and_every_fourth_is_held_out(model: Path) -> None:
    config, recording = recorded(compose_config([f"model={model}", *SMALL]))
    plan = CalibrationPlan(0.0, longest_prompt=100, most_running=4)
    with LLM(config=config) as llm:
        workouts = plan_workouts(llm.engine, plan)
        told: list[float] = []
        measured = measure_steps(llm.engine, recording, workouts, plan, [AttentionSpan(None, 256, 1.0)], told.append)
        assert llm.engine.stats.num_cached_tokens == 0
    # Prompts of 16, 64 and 100 tokens, alone, by two and by four; the shortest ones by three, too.
    shapes = {(w.num_requests, w.num_prompt_tokens) for w in workouts}
    assert shapes == {*itertools.product((1, 2, 4), (16, 64, 100)), (3, 16)}
    assert len(told) == 2 * len(workouts)
    shapes = [step.shape for step in (*measured.fitted, *measured.held_out)]
    # A prompt of 100 takes chunks of 48, 48 and 4.
    assert {48, 4, 16} <= {shape.num_prefill_tokens for shape in shapes}
    assert {shape.num_decode_rows for shape in shapes} == {0, 1, 2, 3, 4}
    assert all(step.duration_s > 0.0 for step in measured.fitted)
    held_out = {step.shape.num_decode_rows for step in measured.held_out}
    assert held_out
    assert len(measured.held_out) < len(measured.fitted)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("output=mine.txt",), "must end in .yaml"),
        (("output=nowhere/mine.yaml",), "folder does not exist"),
        (("output=mine.yaml", "executor=simulated"), "no real steps"),
        (("output=mine.yaml", "spec_decode=ngram"), "plain steps"),
        (("output=mine.yaml", "trace.file=mine.yaml"), "output and trace.file name the same file, mine.yaml"),
        ((), "output"),
    ],
)
def test_mistakes_are_named_before_a_model_is_loaded(run_cli: RunCli, words: tuple[str, ...], message: str) -> None:
    code, out, err = run_cli("calibrate", *words)
    assert (code, out) == (2, "")
    assert message in err


def test_too_little_memory_for_workouts_is_refused(run_cli: RunCli, model: Path, tmp_path: Path) -> None:
    words = (f"model={model}", "cache.num_blocks=3", f"output={tmp_path / 'mine.yaml'}", "seconds=0.01")
    code, _, err = run_cli("calibrate", *words)
    assert code == 2
    assert "workouts fit" in err
