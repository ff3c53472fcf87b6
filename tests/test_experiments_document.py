"""docs/experiments.md: its commands run, and each preset shows the effect that the table claims."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tiny_model import write_tiny_llama
from tokenloom.cli import main
from tokenloom.cli.experiment import ExperimentSettings
from tokenloom.cli.load_settings import read_load, targets_of
from tokenloom.compose import builtin_conf_dir
from tokenloom.experiments.figures import figure
from tokenloom.experiments.points import plan_points
from tokenloom.experiments.runs import run_real, run_simulated

DOCUMENT = (Path(__file__).parent.parent / "docs" / "experiments.md").read_text(encoding="utf-8")
COMMANDS = [line for line in DOCUMENT.splitlines() if line.startswith("tokenloom ")]
PRESETS = sorted(
    path.stem for path in (builtin_conf_dir() / "experiment").glob("*.yaml") if "\nsweep:" in path.read_text()
)
EXPERIMENTS = [
    command
    for command in COMMANDS
    if command.startswith("tokenloom experiment")
    and command.split()[2:-1] not in [[f"experiment={p}"] for p in PRESETS]
]
"""What the tests of the presets do not run."""

Figures = dict[str, dict[str, Any]]


def rising(figures: Figures, name: str) -> bool:
    values = [figure(result, name) for result in figures.values()]
    return all(first < second for first, second in pairwise(values))


def static_batching(found: Figures) -> None:
    static, continuous = found["scheduler=static_batch"], found["scheduler=fcfs"]
    assert continuous["output_tok_s"] > 1.3 * static["output_tok_s"]
    assert continuous["latency"]["ttft_s"]["p99"] < 0.5 * static["latency"]["ttft_s"]["p99"]


def contiguous_or_paged(found: Figures) -> None:
    reserved, paged = found["cache=contiguous"], found["cache=none"]
    assert paged["kv_use"]["used_share"] > 2 * reserved["kv_use"]["used_share"]
    assert paged["kv_use"]["internal"] < 0.1 < 0.5 < reserved["kv_use"]["internal"]
    # 2,048 usable blocks are eight runs of 4,096 tokens.
    assert reserved["occupancy"]["running_peak"] == 8
    assert paged["occupancy"]["running_peak"] > 40


def chunk_size(found: Figures) -> None:
    assert rising(found, "latency.itl_s.max")
    first, *_, last = found.values()
    assert last["latency"]["itl_s"]["max"] > 4 * first["latency"]["itl_s"]["max"]
    assert last["latency"]["ttft_s"]["p50"] < first["latency"]["ttft_s"]["p50"]


def prefix_index(found: Figures) -> None:
    ratio = {name: result["hit_ratio"] for name, result in found.items()}
    assert ratio["cache=hash cache.eviction=lru"] == ratio["cache=radix cache.eviction=lru"] > 0.3
    assert ratio["cache=radix cache.eviction=fifo"] > ratio["cache=hash cache.eviction=fifo"] + 0.02


def victims(found: Figures) -> None:
    recomputed = {name.partition("=")[2]: result["num_recomputed_tokens"] for name, result in found.items()}
    assert min(recomputed, key=lambda name: recomputed[name]) == "least_recompute"
    assert max(recomputed, key=lambda name: recomputed[name]) == "most_blocks"
    preemptions = {name.partition("=")[2]: result["num_preemptions"] for name, result in found.items()}
    assert min(preemptions, key=lambda name: preemptions[name]) == "most_blocks"
    assert min(preemptions.values()) > 0


def admission(found: Figures) -> None:
    optimistic, reserved, peak = (
        found[f"scheduler.admission={name}"] for name in ("optimistic", "reserve_all", "peak_memory")
    )
    assert optimistic["recomputed_share"] > 0.1
    assert reserved["num_preemptions"] == peak["num_preemptions"] == 0
    assert peak["occupancy"]["running_mean"] > 1.2 * reserved["occupancy"]["running_mean"]
    assert peak["output_tok_s"] > optimistic["output_tok_s"] > reserved["output_tok_s"]


def block_size(found: Figures) -> None:
    assert rising(found, "kv_use.internal")
    small, *_, large = found.values()
    assert large["occupancy"]["running_mean"] < 0.95 * small["occupancy"]["running_mean"]
    assert large["output_tok_s"] < small["output_tok_s"]


def slo_budget(found: Figures) -> None:
    fixed, adaptive = found["scheduler=fcfs"], found["scheduler=slo_adaptive"]
    target_s = adaptive["slo"]["tpot_s"]
    assert adaptive["latency"]["tpot_s"]["p99"] <= target_s < fixed["latency"]["tpot_s"]["p99"]
    assert adaptive["slo"]["share_met"] > fixed["slo"]["share_met"]


def naive_or_tiled(found: Figures) -> None:
    for tokens in (64, 1024):
        naive, tiled = (found[f"attention={name} prompt_tokens={tokens}"] for name in ("naive", "torch_sdpa"))
        assert naive["tokens_sha256"] == tiled["tokens_sha256"]
    assert naive["attention_bytes"] > 4 * tiled["attention_bytes"]
    if naive["peak_bytes"] is not None:  # some systems do not tell
        assert naive["peak_bytes"] > 2 * tiled["peak_bytes"]


REAL = {"naive_or_tiled": ("prompt_tokens=64,1024", "output_tokens=4", "engine.num_threads=1")}
"""Presets that run a model, and what makes them quick on a tiny one."""

EFFECTS: dict[str, Callable[[Figures], None]] = {
    check.__name__: check
    for check in (
        static_batching,
        contiguous_or_paged,
        chunk_size,
        prefix_index,
        victims,
        admission,
        block_size,
        slo_budget,
        naive_or_tiled,
    )
}


def test_every_preset_is_documented_and_its_effect_is_tested() -> None:
    assert sorted(EFFECTS) == PRESETS
    assert len(EXPERIMENTS) == 2
    assert [name for name in PRESETS if f"| `{name}` |" not in DOCUMENT] == []
    assert [name for name in PRESETS if f"tokenloom experiment experiment={name} output={name}" not in COMMANDS] == []


@pytest.mark.slow
@pytest.mark.parametrize("preset", [name for name in PRESETS if name not in REAL])
def test_a_preset_shows_its_effect(preset: str) -> None:
    points = plan_points([f"experiment={preset}"], config_dir=None, command=ExperimentSettings, text_keys=())
    found: Figures = {}
    for point in points:
        settings = point.config.extras_of(ExperimentSettings)
        assert settings.workload == "generated"
        found[point.name] = run_simulated(point.config, read_load(settings, 1), targets_of(settings), lambda _: None)
        assert found[point.name]["num_completed"] == settings.limit
        unknown = [name for name in settings.figures if figure(found[point.name], name) is None]
        assert unknown == [], "a figure of the preset is not in the results"
    EFFECTS[preset](found)


@pytest.mark.parametrize("preset", REAL)
def test_a_preset_shows_its_effect_on_a_model(preset: str, tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model", with_tokenizer=True, max_position=2048)
    words = [f"experiment={preset}", f"model={model}", *REAL[preset]]
    found: Figures = {}
    for point in plan_points(words, config_dir=None, command=ExperimentSettings, text_keys=()):
        settings = point.config.extras_of(ExperimentSettings)
        found[point.name] = run_real(point.config, read_load(settings, 1), targets_of(settings), lambda _: None)
        unknown = [name for name in settings.figures if figure(found[point.name], name) is None]
        assert set(unknown) <= {"peak_bytes"}, "a figure of the preset is not in the results"
    EFFECTS[preset](found)


@pytest.mark.parametrize("command", EXPERIMENTS)
def test_each_experiment_runs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = [] if "limit=" in command else ["limit=6"]
    assert main([*shlex.split(command)[1:], *quick, "plot=false"]) == 0
    assert capsys.readouterr().err == ""
    (output,) = (word.partition("=")[2] for word in shlex.split(command) if word.startswith("output="))
    assert len(list((tmp_path / output).glob("*.json"))) >= 2


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("tokenloom plan")])
def test_each_plan_is_printed(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_llama(tmp_path / "model", max_position=2048)
    assert main([*shlex.split(command)[1:], f"model={model}", "model.device=cpu"]) == 0
    assert "KV per token" in capsys.readouterr().out


def test_the_example_of_a_preset_composes(tmp_path: Path) -> None:
    (block,) = (text.partition("```")[0] for text in DOCUMENT.split("```yaml\n")[1:])
    assert yaml.safe_load(block)["sweep"]
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(block)
    points = plan_points(["experiment=mine"], config_dir=tmp_path, command=ExperimentSettings, text_keys=())
    assert len(points) == 6
