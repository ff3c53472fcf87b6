"""docs/tracing.md: its commands run, in order, and do what it says."""

from __future__ import annotations

import json
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from tokenloom.cli import main
from tokenloom.tracing.record_schema import EVENTS

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = (ROOT / "docs" / "tracing.md").read_text(encoding="utf-8")
COMMANDS = [line for line in DOCUMENT.splitlines() if line.startswith("tokenloom ")]


def test_commands_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = []
    for command in COMMANDS:
        code = main(shlex.split(command)[1:])
        captured = capsys.readouterr()
        assert captured.err == ""
        assert code == (1 if " diff " in command else 0)
        printed.append(captured.out)
    *_, replay, diff = printed
    assert "plans are equal" in replay
    assert "first divergence in step" in diff
    assert "scheduled tokens" in diff
    events = {json.loads(line)["event"] for line in (tmp_path / "fcfs.jsonl").read_text().splitlines()[1:]}
    assert events <= set(EVENTS)


def test_every_event_is_described() -> None:
    assert [event for event in EVENTS if f"| `{event}` |" not in DOCUMENT] == []


def test_stress_command_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = [line for line in DOCUMENT.splitlines() if line.startswith("python ")]
    _, script, *words = shlex.split(command.replace("--steps 2000", "--steps 200"))
    monkeypatch.setattr(sys, "argv", [script, *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert ended.value.code == 0
    assert "seed 0: " in capsys.readouterr().out


def test_stress_case_runs_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = ROOT / "benchmarks" / "stress_simulation.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--seed", "0", "--case", "17", "--requests", "0", "3"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("case 17: scheduler=")
    assert "num_requests=2" in out
