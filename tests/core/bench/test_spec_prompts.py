"""Prompt files by category: order, limits, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenloom.bench.spec_prompts import read_prompt_categories
from tokenloom.errors import ConfigError


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n", encoding="utf-8")
    return path


def test_prompts_stand_by_category_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = write(
        tmp_path / "prompts.jsonl",
        {"question_id": 1, "category": "qa", "turns": ["who?", "and then?"]},
        {"question_id": 2, "category": "math", "turns": ["1 + 1"]},
        {"question_id": 3, "category": "qa", "turns": ["where?"]},
        {"question_id": 4, "category": "qa", "turns": ["when?"]},
    )
    assert read_prompt_categories(path, limit=None) == {"qa": ["who?", "where?", "when?"], "math": ["1 + 1"]}
    assert read_prompt_categories(path, limit=2) == {"qa": ["who?", "where?"], "math": ["1 + 1"]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"turns": ["x"]}, "line 2: .*category"),
        ({"category": "qa", "turns": []}, "line 2: .*turns"),
        ({"category": "qa", "turns": [""]}, "line 2: .*turns"),
        ({"category": "qa", "prompt": "x"}, "line 2: .*turns"),
        (["x"], "line 2"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: object, message: str) -> None:
    path = write(tmp_path / "prompts.jsonl", {"category": "qa", "turns": ["x"]}, line)
    with pytest.raises(ConfigError, match=message) as caught:
        read_prompt_categories(path, limit=None)
    assert str(caught.value).startswith(f"prompts={path}: ")


def test_missing_and_empty_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"prompts=.*No such file"):
        read_prompt_categories(tmp_path / "missing.jsonl", limit=None)
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match=r"has none; expected lines of \{\"category\""):
        read_prompt_categories(tmp_path / "empty.jsonl", limit=None)
