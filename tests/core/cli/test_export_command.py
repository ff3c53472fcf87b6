"""`tokenloom export`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.tiny_model import write_tiny_llama
from tokenloom.loader.checkpoint import open_checkpoint

RunCli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model", with_tokenizer=True)


def test_export_writes_the_folder_and_says_so(run_cli: RunCli, model: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    code, out, err = run_cli("export", f"model={model}", str(target), "dtype=bfloat16")
    assert (code, err) == (0, "")
    for path in target.iterdir():
        assert f"wrote {path} (" in out
    assert f"model={target}" in out
    exported = open_checkpoint(target)
    assert exported.config.dtype == "bfloat16"
    assert exported.load("model.norm.weight").dtype == torch.bfloat16


def test_export_cuts_shards(run_cli: RunCli, model: Path, tmp_path: Path) -> None:
    code, out, _ = run_cli("export", str(tmp_path / "out"), f"model.source={model}", "max_shard_gb=0.0001")
    assert code == 0
    assert "model-00001-of-" in out
    assert (tmp_path / "out" / "model.safetensors.index.json").is_file()


def test_export_replaces_a_model_only_by_force(run_cli: RunCli, model: Path, tmp_path: Path) -> None:
    words = ("export", f"model={model}", str(tmp_path / "out"))
    assert run_cli(*words)[0] == 0
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    code, out, err = run_cli(*words, "dtype=bfloat16")
    assert (code, out) == (2, "")
    assert "--force" in err
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    assert run_cli(*words, "dtype=bfloat16", "--force")[0] == 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() != before


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "expected one folder to write to, got none"),
        (("a", "b"), "got 'a', 'b'"),
        (("a", "scheduler=fcfs"), "export has no key scheduler"),
        (("a", "model.dtype=float32"), "export has no key model.dtype"),
        (("a", "dtyp=float32"), "Did you mean 'dtype'?"),
        (("a", "dtype=int8"), "dtype"),
        (("a", "max_shard_gb=0"), "max_shard_gb"),
        (("a", "max_shard_gb=inf"), "max_shard_gb"),
        (("a", "max_shard_gb=nan"), "max_shard_gb"),
        (("a", "max_shard_gb=1e308"), "max_shard_gb"),
        (("a", "model=hff:x"), "unknown scheme"),
        (("absent/a",), "make it first"),
    ],
)
def test_export_refuses_what_makes_no_sense(
    run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run_cli("export", *words)
    assert (code, out) == (2, "")
    assert expected in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", [(), ("--force",)])
def test_export_advises_no_option_that_would_be_refused_too(
    run_cli: RunCli, model: Path, tmp_path: Path, option: tuple[str, ...]
) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("mine")
    for target, expected in ((tmp_path / "notes", "holds no model"), (model, "holds the model that is to be exported")):
        code, _, err = run_cli("export", f"model={model}", str(target), *option)
        assert code == 2
        assert expected in err
        assert "--force" not in err


def test_export_explains_its_keys(run_cli: RunCli) -> None:
    code, out, _ = run_cli("explain", "max_shard_gb")
    assert code == 0
    assert "tokenloom export" in out
