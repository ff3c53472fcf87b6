"""Split GGUF files: one model from all parts, and every way in which a set of parts can be wrong."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.core.loader.gguf_conversion import Conversion, write_gguf
from tests.core.loader.hf_families import write_hf_family
from tokenloom.errors import ModelError
from tokenloom.loader.checkpoint import open_checkpoint
from tokenloom.loader.gguf_checkpoint import GGUFCheckpoint
from tokenloom.loader.gguf_parts import is_later_part


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_hf_family(tmp_path / "hf", "qwen3")


@pytest.fixture
def first(tmp_path: Path, folder: Path) -> Path:
    """The first of three parts."""
    (tmp_path / "split").mkdir()
    return write_gguf(folder, tmp_path / "split" / "model.gguf", Conversion(num_parts=3))


def part(first: Path, number: int) -> Path:
    return first.with_name(f"model-{number:05}-of-00003.gguf")


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        GGUFCheckpoint(path)
    return str(caught.value)


def test_parts_give_the_same_model_as_one_file(tmp_path: Path, folder: Path, first: Path) -> None:
    whole = GGUFCheckpoint(write_gguf(folder, tmp_path / "whole.gguf"))
    split = GGUFCheckpoint(first)
    assert split.config == whole.config
    assert set(split.tensor_names()) == set(whole.tensor_names())
    for name in whole.tensor_names():
        assert torch.equal(split.load(name), whole.load(name)), name
    assert split.path == first


def test_file_of_names_the_part_that_holds_a_tensor(first: Path) -> None:
    checkpoint = GGUFCheckpoint(first)
    files = [checkpoint.file_of(name) for name in checkpoint.tensor_names()]
    assert set(files) == {part(first, number) for number in (1, 2, 3)}
    assert files == sorted(files)  # tensors come in file order, so loading reads one part after the other
    with pytest.raises(ModelError, match=r"no tensor 'model\.layers\.9"):
        checkpoint.file_of("model.layers.9.input_layernorm.weight")


def test_a_folder_with_one_split_model_opens_it(first: Path) -> None:
    assert open_checkpoint(first.parent).path == first


def test_digest_covers_every_part(first: Path) -> None:
    before = GGUFCheckpoint(first).weights_digest
    assert GGUFCheckpoint(first).weights_digest == before
    last = part(first, 3)
    content = bytearray(last.read_bytes())
    content[-1] ^= 1
    last.write_bytes(content)
    assert GGUFCheckpoint(first).weights_digest != before


def test_loaded_tensors_stay_valid_after_close(first: Path) -> None:
    checkpoint = GGUFCheckpoint(first)
    norm = checkpoint.load("model.norm.weight")
    before = norm.clone()
    checkpoint.close()
    for number in (1, 2, 3):
        part(first, number).write_bytes(b"")
    assert torch.equal(norm, before)


def test_a_later_part_names_the_first(first: Path) -> None:
    assert is_later_part(part(first, 2))
    assert not is_later_part(first)
    assert not is_later_part(first.with_name("model.gguf"))
    assert "open its first part, model-00001-of-00003.gguf" in refusal(part(first, 2))


def test_missing_parts_are_named(first: Path) -> None:
    part(first, 2).unlink()
    message = refusal(first)
    assert "1 are missing beside it, first model-00002-of-00003.gguf" in message
    assert str(first) in message


def test_a_renamed_part_is_refused(first: Path) -> None:
    renamed = first.rename(first.with_name("model.gguf"))
    assert "must end in '-00001-of-00003.gguf'" in refusal(renamed)


def test_parts_in_the_wrong_order_are_refused(first: Path) -> None:
    second, third = part(first, 2).read_bytes(), part(first, 3).read_bytes()
    part(first, 2).write_bytes(third)
    part(first, 3).write_bytes(second)
    assert "says that it is part 3 of 3, but its name says 2 of 3" in refusal(first)


def test_a_truncated_part_is_refused_by_its_name(first: Path) -> None:
    last = part(first, 3)
    last.write_bytes(last.read_bytes()[:-200])
    assert f"{last} is truncated or damaged" in refusal(first)


def test_a_part_of_another_model_is_refused(tmp_path: Path, first: Path) -> None:
    other = write_hf_family(tmp_path / "other", "qwen3", {"num_hidden_layers": 4})
    (tmp_path / "other_split").mkdir()
    foreign = write_gguf(other, tmp_path / "other_split" / "model.gguf", Conversion(num_parts=3))
    shutil.copy(part(foreign, 3), part(first, 3))
    message = refusal(first)
    assert "tensors in all parts together" in message


def test_a_part_that_repeats_tensors_is_refused(first: Path) -> None:
    content = part(first, 2).read_bytes()
    field = content.index(b"split.no") + len(b"split.no") + 4  # the value follows the key and its type
    part(first, 3).write_bytes(content[:field] + b"\x02\x00" + content[field + 2 :])
    message = refusal(first)
    assert f"{part(first, 3)} repeats tensor" in message
    assert str(part(first, 2)) in message


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"split.count": 2**31}, "'split.count' must be an integer from 0 to 99999"),
        ({"split.count": "three"}, "'split.count' must be an integer"),
        ({"split.count": 3}, "one of 3 parts"),
        ({"split.tensors.count": 5}, "announces 5 tensors in all parts together"),
    ],
)
def test_absurd_split_keys_are_refused(tmp_path: Path, folder: Path, metadata: dict[str, Any], expected: str) -> None:
    path = write_gguf(folder, tmp_path / "m.gguf", Conversion(metadata=metadata))
    assert expected in refusal(path)


def test_a_split_count_of_one_is_a_whole_file(tmp_path: Path, folder: Path) -> None:
    metadata = {"split.count": 1, "split.no": 0}
    assert GGUFCheckpoint(write_gguf(folder, tmp_path / "m.gguf", Conversion(metadata=metadata))).config.num_layers == 2
