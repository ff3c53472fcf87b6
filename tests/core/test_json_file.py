"""JSON files of a folder: whatever is wrong with one, the error names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenloom.errors import ModelError
from tokenloom.json_file import read_json


def test_an_object_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": "é"}', encoding="utf-8")
    assert read_json(path) == {"a": "é"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Expecting value"),
        (b"\xff\xfe", "can't decode byte 0xff"),
        (b"[" * 100_000, "recursion"),
        (b'{"a":' * 100_000, "recursion"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "4300 digits"),
        (b"[]", "must hold a JSON object, got list"),
        (b"null", "must hold a JSON object, got NoneType"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=rf"config\.json.*{message}"):
        read_json(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(ModelError, match=f"cannot read {path}"):
            read_json(path)
