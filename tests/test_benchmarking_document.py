"""docs/benchmarking.md: its commands run, against scripted servers and small files of the form that they name."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.load_generator.fake_server import FakeServer
from tokenloom.cli import main
from tokenloom.cli.bench_compare import BenchCompareSettings
from tokenloom.cli.bench_serve import BenchServeSettings

DOCUMENT = (Path(__file__).parent.parent / "docs" / "benchmarking.md").read_text(encoding="utf-8")
COMMANDS = [line for line in DOCUMENT.splitlines() if line.startswith("tokenloom ")]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    with FakeServer().running() as a, FakeServer().running() as b:
        yield {"http://localhost:8000": a, "http://localhost:8001": b}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [f"2023-11-16 18:15:{second:02}.5,{40 + second},{3 + second % 5}" for second in range(30)]
    (tmp_path / "azure.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    lines = [{"question_id": n, "category": "qa", "turns": [f"Question {n}?", "Another?"]} for n in range(5)]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_runs(
    command: str, servers: dict[str, str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, url in servers.items():
        command = command.replace(name, url)
    # The same words, faster.
    quick = command.replace("rate=2,4,8 duration_s=60 warmup_s=10", "rate=200,400 duration_s=0.1 warmup_s=0.01")
    quick = (
        quick.replace("rate=4 ", "rate=400 ").replace("_tokens=256", "_tokens=16").replace("_tokens=64", "_tokens=4")
    )
    assert main(shlex.split(quick)[1:]) == 0
    assert "TTFT" in capsys.readouterr().out
    for word in shlex.split(command):
        if word.startswith(("output=", "plot=")):
            assert (folder / word.partition("=")[2]).stat().st_size > 0


def test_the_keys_that_it_names_exist() -> None:
    known = {*BenchServeSettings.model_fields, *BenchCompareSettings.model_fields}
    words = {word for command in COMMANDS for word in shlex.split(command) if "=" in word}
    assert {word.partition("=")[0] for word in words} <= known
    for key in ("warmup_s", "cut_off", "extra_body", "prompt_form", "tokenizer", "agreement_prompts", "a_api_key"):
        assert f"`{key}" in DOCUMENT
        assert key in known
