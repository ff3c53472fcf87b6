"""open_checkpoint: what a path holds is decided by its content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tokenloom.errors import ModelError
from tokenloom.loader.checkpoint import GGUFCheckpoint, HFCheckpoint, open_checkpoint


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_checkpoint(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_open_reads_a_gguf_file_of_any_name(tmp_path: Path, tiny: Any) -> None:
    path = tiny.write_gguf(tmp_path / "weights.dat", tiny.weights())
    assert isinstance(open_checkpoint(path), GGUFCheckpoint)


def test_open_reads_a_folder_with_one_gguf_file(tmp_path: Path, tiny: Any) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", tiny.weights())
    checkpoint = open_checkpoint(tmp_path)
    assert isinstance(checkpoint, GGUFCheckpoint)
    assert checkpoint.path == path


def test_open_lists_several_gguf_files(tmp_path: Path, tiny: Any) -> None:
    paths = [tiny.write_gguf(tmp_path / f"{name}.gguf", tiny.weights()) for name in ("b", "a")]
    message = refusal(tmp_path)
    assert "2 GGUF files" in message
    assert all(str(path) in message for path in paths)


@pytest.mark.parametrize("num_shards", [1, 2])
def test_open_prefers_a_hugging_face_model_to_a_gguf_file_beside_it(tmp_path: Path, tiny: Any, num_shards: int) -> None:
    tiny.write_hf(tmp_path, tiny.weights(), num_shards=num_shards)
    tiny.write_gguf(tmp_path / "m.gguf", tiny.weights())
    assert isinstance(open_checkpoint(tmp_path), HFCheckpoint)


def test_open_takes_the_gguf_file_where_config_json_has_no_weights(tmp_path: Path, tiny: Any) -> None:
    tiny.write_hf(tmp_path, tiny.weights())
    (tmp_path / "model.safetensors").unlink()
    tiny.write_gguf(tmp_path / "m.gguf", tiny.weights())
    assert isinstance(open_checkpoint(tmp_path), GGUFCheckpoint)


def test_open_says_what_is_wrong_with_pickled_weights(tmp_path: Path, tiny: Any) -> None:
    tiny.write_hf(tmp_path, tiny.weights())
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin" in refusal(tmp_path)


def test_open_refuses_what_is_not_there(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "absent")
    assert "holds no model" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("m.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"),
        ("model.safetensors", bytes(16), "name the folder"),
        ("config.json", b"{}", "name the folder"),
        ("pytorch_model.bin", b"PK\x03\x04" + bytes(8), "pickled"),
        ("m.pt", b"\x80\x02ctorch", "pickled"),
        ("m.gguf", b"<html>", "not a GGUF file: it starts with b'<htm'"),
        ("m.gguf", b"", "not a GGUF file: it starts with b''"),
        ("m.gguf", b"GGUF", "truncated or damaged"),
    ],
)
def test_open_says_what_another_file_is(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert expected in refusal(path)
