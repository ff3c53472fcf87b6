"""Pickled weights: both formats of torch, shards, damage, and pickles that want to run something."""

from __future__ import annotations

import json
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

from tokenloom.errors import ModelError
from tokenloom.loader.hf_checkpoint import HFCheckpoint
from tokenloom.loader.pickled_file import PickledFile
from tokenloom.loader.weight_index import WEIGHT_FILES

PICKLED, PICKLED_INDEX = WEIGHT_FILES[2:]


def write_pickled(folder: Path, tiny: Any, content: Any, config: dict[str, Any] | None = None, **options: Any) -> Path:
    tiny.write_hf(folder, {}, config)
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / PICKLED, **options)
    return folder


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        PickledFile(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("is_zip", [True, False])
def test_both_formats_give_every_tensor(tmp_path: Path, tiny: Any, is_zip: bool) -> None:
    weights = tiny.weights()
    folder = write_pickled(tmp_path, tiny, weights, _use_new_zipfile_serialization=is_zip)
    checkpoint = HFCheckpoint(folder)
    assert sorted(checkpoint.tensor_names()) == sorted(weights)
    loaded = {name: checkpoint.load(name) for name in weights}
    for name, tensor in weights.items():
        assert torch.equal(loaded[name], tensor)
        assert torch.equal(checkpoint.load(name, torch.bfloat16), tensor.to(torch.bfloat16))
        assert checkpoint.file_of(name) == folder / PICKLED
    checkpoint.close()
    (folder / PICKLED).write_bytes(b"")  # what was loaded does not lie in the file's memory map
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())


def test_shards_give_every_tensor(tmp_path: Path, tiny: Any) -> None:
    weights = tiny.weights()
    folder = write_pickled(tmp_path, tiny, {})
    (folder / PICKLED).unlink()
    weight_map = {}
    for shard in range(2):
        file = f"pytorch_model-{shard + 1:05}-of-00002.bin"
        part = {name: weights[name] for name in sorted(weights)[shard::2]}
        torch.save(part, folder / file)
        weight_map.update(dict.fromkeys(part, file))
    (folder / PICKLED_INDEX).write_text(json.dumps({"weight_map": weight_map}))
    checkpoint = HFCheckpoint(folder)
    assert all(torch.equal(checkpoint.load(name), tensor) for name, tensor in weights.items())
    assert len({checkpoint.file_of(name) for name in weights}) == 2


def test_views_parameters_and_shared_heads_load_as_they_are_seen(tmp_path: Path, tiny: Any) -> None:
    weights = tiny.weights()
    shared = weights["model.embed_tokens.weight"]
    transposed = torch.randn(64, 96).t()
    content = {
        **weights,
        "model.embed_tokens.weight": torch.nn.Parameter(shared),
        "lm_head.weight": torch.nn.Parameter(shared),
        "model.layers.0.mlp.up_proj.weight": transposed,
        "model.norm.weight": torch.arange(128.0)[::2],
    }
    checkpoint = HFCheckpoint(write_pickled(tmp_path, tiny, content))
    assert checkpoint.config.tie_word_embeddings
    assert "lm_head.weight" not in checkpoint.tensor_names()
    up = checkpoint.load("model.layers.0.mlp.up_proj.weight")
    assert torch.equal(up, transposed)
    assert up.is_contiguous()
    assert up.untyped_storage().nbytes() == up.numel() * 4
    assert torch.equal(checkpoint.load("model.norm.weight"), torch.arange(128.0)[::2])


def test_weights_digest_follows_the_weights(tmp_path: Path, tiny: Any) -> None:
    digests = []
    for seed in (0, 1):
        folder = write_pickled(tmp_path / "m", tiny, tiny.weights(seed=seed))
        for file in folder.iterdir():
            os.utime(file, ns=(0, 0))
        digests.append(HFCheckpoint(folder).weights_digest)
    assert digests[0] != digests[1]


class _Runs:
    """Unpickling it calls `function(*arguments)`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


@pytest.mark.parametrize("form", ["zip", "legacy", "plain pickle"])
def test_pickle_with_code_is_refused_and_runs_nothing(tmp_path: Path, tiny: Any, form: str) -> None:
    trace = tmp_path / "ran"
    evil = _Runs(os.mkdir, str(trace))
    path = tmp_path / PICKLED
    if form == "plain pickle":
        path.write_bytes(pickle.dumps({"evil": evil}, protocol=2))
    else:
        content = {"model.norm.weight": torch.ones(64), "evil": evil}
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    message = refusal(path)
    assert not trace.exists()
    assert "names code, 'posix.mkdir'" in message or "names code, 'nt.mkdir'" in message
    assert "safetensors" in message
    pickle.loads(pickle.dumps(evil))  # the trap itself works
    assert trace.exists()


@pytest.mark.parametrize("function", [eval, exec, getattr, __import__])
def test_no_builtin_runs_either(tmp_path: Path, function: Any) -> None:
    path = tmp_path / PICKLED
    torch.save({"evil": _Runs(function, "1/0")}, path)
    assert f"names code, '{function.__name__}'" in refusal(path)


def test_forcing_variable_of_torch_does_not_open_the_door(
    tmp_path: Path, tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    trace = tmp_path / "ran"
    torch.save({"evil": _Runs(os.mkdir, str(trace))}, tmp_path / PICKLED)
    assert "names code" in refusal(tmp_path / PICKLED)
    assert not trace.exists()


@pytest.mark.parametrize("is_zip", [True, False])
def test_truncations_are_refused(tmp_path: Path, tiny: Any, is_zip: bool) -> None:
    path = tmp_path / PICKLED
    torch.save(tiny.weights(), path, _use_new_zipfile_serialization=is_zip)
    content = path.read_bytes()
    for length in [0, 1, 3, 4, 17, 300, 1000, len(content) // 2, len(content) - 1]:
        path.write_bytes(content[:length])
        message = refusal(path)
        assert "truncated or damaged" in message, length
        assert "weights_only" not in message


@pytest.mark.parametrize("content", [b"", b"<html>", b"\x80\x02", b"PK\x03\x04" + bytes(60), b"cos\nsystem\n."])
def test_what_is_no_pickle_of_torch_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / PICKLED
    path.write_bytes(content)
    assert "truncated or damaged" in refusal(path) or "names code" in refusal(path)


def test_tar_format_of_old_torch_is_refused(tmp_path: Path) -> None:
    path = tmp_path / PICKLED
    with tarfile.open(path, "w") as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            (tmp_path / name).write_bytes(pickle.dumps({}))
            archive.add(tmp_path / name, name)
    assert "only be read by running code" in refusal(path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([torch.ones(2)], "holds a list"),
        (torch.ones(2), "holds a Tensor"),
        ({"state_dict": {"a": torch.ones(2)}}, "entry 'state_dict' is a dict"),
        ({"model.norm.weight": torch.ones(2), "epoch": 3}, "entry 'epoch' is a int"),
        ({3: torch.ones(2)}, "entry 3 is a Tensor"),
        ({"a": torch.ones(3, 3).to_sparse()}, "no plain dense tensor (torch.sparse_coo"),
        ({"a": torch.ones(1).expand(10**9)}, "larger than its data"),
    ],
)
def test_what_is_no_state_dict_is_refused(tmp_path: Path, content: Any, expected: str) -> None:
    path = tmp_path / PICKLED
    torch.save(content, path)
    assert expected in refusal(path)


def test_git_lfs_pointer_is_named(tmp_path: Path) -> None:
    path = tmp_path / PICKLED
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert "git lfs pull" in refusal(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    assert "is missing" in refusal(tmp_path / PICKLED)
