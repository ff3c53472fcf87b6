"""Texts to score: files, and the one that Python ships."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from tokenloom.errors import ConfigError
from tokenloom.evaluation.texts import BUILT_IN, read_text


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("één\n\ntwee\n\neen\n\neen\n", encoding="utf-8")
    found = read_text(tmp_path / "a.txt")
    assert (found.name, found.text) == ("a.txt", "één\n\ntwee\n\neen\n\neen\n")
    assert found.digest == hashlib.sha256((tmp_path / "a.txt").read_bytes()).hexdigest()


def test_the_built_in_text_is_long_and_repeats_no_paragraph() -> None:
    found = read_text(None)
    paragraphs = found.text.split("\n\n")
    assert found.name == BUILT_IN
    assert len(found.text) > 200_000
    assert len(paragraphs) == len(set(paragraphs))


def test_a_python_without_the_built_in_text_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ConfigError, match="text=FILE"):
        read_text(None)


@pytest.mark.parametrize(
    ("content", "message"), [(b" \n", "is empty"), (b"\xff\xfe", "not text in UTF-8"), (None, "No such")]
)
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"text=.*{message}"):
        read_text(path)
