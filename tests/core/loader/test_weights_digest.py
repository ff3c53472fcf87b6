"""The quick digest sees every part it promises to see; records survive a round trip and report damage."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tokenloom.errors import ModelError
from tokenloom.loader.weights_digest import DigestRecord, file_sha256, quick_digest

SIZE = 300_000


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "w.bin"
    path.write_bytes(bytes(SIZE))
    os.utime(path, ns=(0, 0))
    return path


def rewrite(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    os.utime(path, ns=(0, 0))


def test_quick_digest_sees_header_size_time_and_name(weights: Path, tmp_path: Path) -> None:
    first = quick_digest([(weights, b"header")])
    assert quick_digest([(weights, b"header")]) == first
    seen = {first, quick_digest([(weights, b"other")])}
    os.utime(weights, ns=(0, 1))
    seen.add(quick_digest([(weights, b"header")]))
    rewrite(weights, bytes(SIZE + 1))
    seen.add(quick_digest([(weights, b"header")]))
    rewrite(weights, bytes(SIZE))
    seen.add(quick_digest([(weights.rename(tmp_path / "other.bin"), b"header")]))
    assert len(seen) == 5


@pytest.mark.parametrize("position", [0, 4095, SIZE - 4096, SIZE - 1])
def test_quick_digest_sees_both_ends(weights: Path, position: int) -> None:
    first = quick_digest([(weights, b"")])
    content = bytearray(SIZE)
    content[position] = 1
    rewrite(weights, bytes(content))
    assert quick_digest([(weights, b"")]) != first


def test_quick_digest_ignores_the_order_of_files(weights: Path, tmp_path: Path) -> None:
    other = tmp_path / "v.bin"
    other.write_bytes(b"small")
    os.utime(other, ns=(0, 0))
    assert quick_digest([(weights, b"a"), (other, b"b")]) == quick_digest([(other, b"b"), (weights, b"a")])
    assert quick_digest([(weights, b"a"), (other, b"b")]) != quick_digest([(weights, b"b"), (other, b"a")])


def test_file_sha256_is_that_of_the_content(weights: Path) -> None:
    assert file_sha256(weights) == hashlib.sha256(bytes(SIZE)).hexdigest()


def test_record_round_trip_and_match(weights: Path) -> None:
    assert DigestRecord.read(weights) is None
    record = DigestRecord("ab" * 32, SIZE, 0)
    record.write(DigestRecord.path_for(weights))
    assert DigestRecord.read(weights) == record
    assert record.matches(weights)
    os.utime(weights, ns=(0, 5))
    assert not record.matches(weights)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"sha256": "a", "num_bytes": "x", "mtime_ns": 0}'])
def test_damaged_record_is_refused(weights: Path, content: str) -> None:
    record_path = DigestRecord.path_for(weights)
    record_path.write_text(content)
    with pytest.raises(ModelError) as caught:
        DigestRecord.read(weights)
    assert str(record_path) in str(caught.value)
