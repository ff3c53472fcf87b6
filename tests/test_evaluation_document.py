"""docs/evaluation.md: its commands run, on a tiny model and small files of the form that they name."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.tiny_model import write_tiny_llama
from tokenloom.cli import main
from tokenloom.cli.eval_settings import EvalCompareSettings

DOCUMENT = (Path(__file__).parent.parent / "docs" / "evaluation.md").read_text(encoding="utf-8")
COMMANDS = [line for line in DOCUMENT.splitlines() if line.startswith("tokenloom eval")]
SMALL = ("window=40", "num_windows=2", "cache.num_blocks=64", "engine.num_threads=1")
QUESTION = re.search(r"```json\n(.*)\n```", DOCUMENT)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("original", "out/rtn", "out/gptq"):
        write_tiny_llama(tmp_path / name, with_tokenizer=True, max_position=2048)
    (tmp_path / "book.txt").write_text("It was a dark and stormy night. " * 10)
    assert QUESTION is not None
    (tmp_path / "questions.jsonl").write_text(QUESTION[1])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_runs(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)[1:]
    has_perplexity = "multiple_choice" not in words or "perplexity" in words
    small = SMALL if has_perplexity else SMALL[2:]
    if "compare" in words and "speed=false" not in words:
        small = (*small, "speed_prompt_tokens=20", "speed_output_tokens=3", "repetitions=1")
    small = (*small, "cache.num_blocks=256", "trials=1") if "retrieval" in words else small
    model = () if "--variant" in words else ("model=original",)
    assert main([*words, *model, *small]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert ("perplexity" in printed.out) is has_perplexity
    for word in words:
        if word.startswith(("output=", "plot=")):
            assert (folder / word.partition("=")[2]).stat().st_size > 0


def test_every_key_is_named() -> None:
    assert [key for key in EvalCompareSettings.model_fields if f"{key}=" not in DOCUMENT] == []


def test_the_question_is_one() -> None:
    assert QUESTION is not None
    assert set(json.loads(QUESTION[1])) == {"context", "choices", "answer"}
