"""Which weight files count, and what is said when they and their index do not fit together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tokenloom.errors import ModelError
from tokenloom.loader.hf_checkpoint import HFCheckpoint

INDEX = "model.safetensors.index.json"
NORM = "model.norm.weight"


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        HFCheckpoint(folder)
    assert str(folder) in str(caught.value)
    return str(caught.value)


def with_norm(tiny: Any, value: float) -> dict[str, torch.Tensor]:
    return {**tiny.weights(), NORM: torch.full((64,), value)}


def chosen_norm(folder: Path) -> float:
    return float(HFCheckpoint(folder).load(NORM)[0])


def test_safetensors_count_before_pickles(tmp_path: Path, tiny: Any) -> None:
    folder = tiny.write_hf(tmp_path, with_norm(tiny, 1.0))
    torch.save(with_norm(tiny, 2.0), folder / "pytorch_model.bin")
    assert chosen_norm(folder) == 1.0
    (folder / "model.safetensors").unlink()
    assert chosen_norm(folder) == 2.0


def test_shards_of_safetensors_count_before_a_single_pickle(tmp_path: Path, tiny: Any) -> None:
    folder = tiny.write_hf(tmp_path, with_norm(tiny, 1.0), num_shards=2)
    torch.save(with_norm(tiny, 2.0), folder / "pytorch_model.bin")
    assert chosen_norm(folder) == 1.0


def test_one_file_counts_before_shards(tmp_path: Path, tiny: Any) -> None:
    folder = tiny.write_hf(tmp_path, with_norm(tiny, 1.0), num_shards=2)
    save_file(with_norm(tiny, 2.0), folder / "model.safetensors")
    assert chosen_norm(folder) == 2.0


def test_index_may_name_the_single_file(tmp_path: Path, tiny: Any) -> None:
    weights = tiny.weights()
    folder = tiny.write_hf(tmp_path, weights)
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(weights, "weights.safetensors")}))
    assert sorted(HFCheckpoint(folder).tensor_names()) == sorted(weights)


@pytest.mark.parametrize("shard", ["..", ".", "", "a/b.safetensors", "..\\b.safetensors", "a\0b", None])
def test_index_may_not_lead_out_of_the_folder(tmp_path: Path, tiny: Any, shard: Any) -> None:
    folder = tiny.write_hf(tmp_path, tiny.weights(), num_shards=2)
    (folder / INDEX).write_text(json.dumps({"weight_map": {NORM: shard}}))
    assert "must name a file of this folder" in refusal(folder)


def test_shards_may_be_links_as_in_a_cache(tmp_path: Path, tiny: Any) -> None:
    folder = tiny.write_hf(tmp_path / "snapshot", tiny.weights(), num_shards=2)
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for number, file in enumerate(sorted(folder.glob("*.safetensors"))):
        file.rename(blobs / str(number))
        file.symlink_to(blobs / str(number))
    assert sorted(HFCheckpoint(folder).tensor_names()) == sorted(tiny.weights())


def test_every_missing_shard_is_counted(tmp_path: Path, tiny: Any) -> None:
    folder = tiny.write_hf(tmp_path, tiny.weights(), num_shards=3)
    for number in (1, 3):
        (folder / f"model-{number:05}-of-00003.safetensors").unlink()
    assert "model-00001-of-00003.safetensors is missing (and 1 more)" in refusal(folder)


def test_dangling_link_is_a_missing_shard(tmp_path: Path, tiny: Any) -> None:
    folder = tiny.write_hf(tmp_path, tiny.weights(), num_shards=2)
    shard = folder / "model-00002-of-00002.safetensors"
    shard.unlink()
    shard.symlink_to(tmp_path / "gone")
    assert "00002-of-00002.safetensors is missing" in refusal(folder)


@pytest.mark.parametrize("num_shards", [1, 2])
def test_git_lfs_pointer_is_named(tmp_path: Path, tiny: Any, num_shards: int) -> None:
    folder = tiny.write_hf(tmp_path, tiny.weights(), num_shards=num_shards)
    shard = min(folder.glob("*.safetensors"))
    shard.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    message = refusal(folder)
    assert shard.name in message
    assert "git lfs pull" in message


def test_tensor_in_two_shards_is_refused(tmp_path: Path, tiny: Any) -> None:
    weights = tiny.weights()
    folder = tiny.write_hf(tmp_path, weights, num_shards=2)
    first = sorted(weights)[::2]
    save_file({name: weights[name] for name in [*first, sorted(weights)[1]]}, min(folder.glob("*.safetensors")))
    assert "both hold a tensor 'model.layers.0.input_layernorm.weight'" in refusal(folder)


def test_tensor_that_the_index_names_twice_is_refused(tmp_path: Path, tiny: Any) -> None:
    folder = tiny.write_hf(tmp_path, tiny.weights(), num_shards=2)
    shards = [f'"{NORM}": "{file.name}"' for file in sorted(folder.glob("*.safetensors"))]
    (folder / INDEX).write_text(f'{{"weight_map": {{{", ".join(shards)}}}}}')
    assert f"names '{NORM}' twice" in refusal(folder)


def test_tensor_that_the_index_leaves_out_is_there_all_the_same(tmp_path: Path, tiny: Any) -> None:
    folder = tiny.write_hf(tmp_path, tiny.weights(), num_shards=2)
    index = json.loads((folder / INDEX).read_text())
    del index["weight_map"][NORM]
    (folder / INDEX).write_text(json.dumps(index))
    assert NORM in HFCheckpoint(folder).tensor_names()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model-00001-of-00002.safetensors", "need their index"),
        ("consolidated.00.pth", "holds consolidated.00.pth. Convert the weights to safetensors"),
        ("tf_model.h5", "holds tf_model.h5"),
    ],
)
def test_weights_of_another_kind_are_named(tmp_path: Path, tiny: Any, name: str, expected: str) -> None:
    folder = tiny.write_hf(tmp_path, tiny.weights())
    (folder / "model.safetensors").rename(folder / name)
    assert expected in refusal(folder)
