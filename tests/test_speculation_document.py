"""docs/speculation.md: its commands run, on small files of the form that they name and a tiny model."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.tiny_model import write_tiny_llama
from tokenloom.cli import main
from tokenloom.cli.bench_spec_tables import COLUMNS
from tokenloom.plugins import default_registry

DOCUMENT = (Path(__file__).parent.parent / "docs" / "speculation.md").read_text(encoding="utf-8")
COMMANDS = [line for line in DOCUMENT.splitlines() if line.startswith("tokenloom ")]


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny"), with_tokenizer=True, vocab_size=320)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [f"2023-11-16 18:15:{second:02}.5,{40 + second},{3 + second % 5}" for second in range(30)]
    (tmp_path / "azure.csv").write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    lines = [
        {"question_id": n, "category": ("qa", "writing")[n % 2], "turns": [f"Say {n} {n} {n}", "Again?"]}
        for n in range(4)
    ]
    (tmp_path / "spec_bench.jsonl").write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_runs(command: str, folder: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command.replace("concurrency=1,8,64 repetitions=3", "concurrency=2"))[1:]
    if words[0] == "bench":
        engine = ("model.dtype=float32", "cache.num_blocks=100", "engine.num_threads=1", "max_tokens=8")
        words += [f"model={tiny_folder}", *engine]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "drafting" in printed.out or "TTFT" in printed.out
    for word in words:
        if word.startswith(("output=", "plot=")):
            assert (folder / word.partition("=")[2]).stat().st_size > 0


def test_the_drafters_that_it_names_exist() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", DOCUMENT, re.MULTILINE)
    known = {"ngram", "suffix", "self_spec", "synthetic"}
    assert known <= set(listed)
    assert known <= set(default_registry().names("spec_decode"))


def test_the_columns_that_it_explains_are_those_of_the_table() -> None:
    explained = set(re.findall(r"^\| `([^`]+)` \|", DOCUMENT, re.MULTILINE))
    assert set(COLUMNS) - explained == {"category", "drafter", "tokens/s"}
