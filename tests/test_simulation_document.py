"""docs/simulation.md: its commands run, on small files of the form that they name."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.tiny_model import write_tiny_llama
from tokenloom.cli import main
from tokenloom.executors.device_presets import DEVICE_PRESETS

DOCUMENT = (Path(__file__).parent.parent / "docs" / "simulation.md").read_text(encoding="utf-8")
COMMANDS = [line for line in DOCUMENT.splitlines() if line.startswith("tokenloom ")]
SIMULATIONS = [command for command in COMMANDS if command.startswith("tokenloom simulate")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [f"2023-11-16 18:15:{second:02}.5,{40 + second},{3 + second % 5}" for second in range(30)]
    (tmp_path / "azure.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    lines = [
        {"timestamp": 3000 * (n // 4), "input_length": 700, "output_length": 4, "hash_ids": [n % 3, 10 + n]}
        for n in range(20)
    ]
    (tmp_path / "mooncake.jsonl").write_text("\n".join(map(json.dumps, lines)))
    preset = DEVICE_PRESETS["cpu_2core_135m"]
    (tmp_path / "mine.yaml").write_text(preset.model_dump_json())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", SIMULATIONS)
def test_each_simulation_runs(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Of the long example, two of its six rates.
    assert main(shlex.split(command.replace("rate=2,4,8,10,11,12", "rate=2,12"))[1:]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "hit_ratio" in printed.out or "TTFT" in printed.out
    for word in shlex.split(command):
        if word.startswith(("output=", "plot=")):
            assert (folder / word.partition("=")[2]).stat().st_size > 0


def test_calibrate_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = [command for command in COMMANDS if command not in SIMULATIONS]
    model = write_tiny_llama(folder / "model", with_tokenizer=True)
    quick = command.replace("seconds=120", "seconds=0.01").replace("mine.yaml", "other.yaml")
    words = ("cache.num_blocks=64", "longest_prompt=100", "most_running=4", "engine.num_threads=1")
    assert main([*shlex.split(quick)[1:], f"model={model}", *words]) == 0
    assert (folder / "other.yaml").exists()
    assert "held out" in capsys.readouterr().out


def test_every_preset_is_named() -> None:
    assert [name for name in DEVICE_PRESETS if f"`{name}`" not in DOCUMENT] == []
