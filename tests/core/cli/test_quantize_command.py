"""`tokenloom quantize`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny_model import write_tiny_llama
from tokenloom.loader.hf_checkpoint import HFCheckpoint

RunCli = Callable[..., tuple[int, str, str]]
SMALL = ("num_samples=2", "sample_tokens=64", "group_size=32")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "text.txt").write_text("".join(f"{number}: {number * number} apples. " for number in range(60)))
    return write_tiny_llama(folder / "model", with_tokenizer=True)


@pytest.fixture
def words(model: Path, tmp_path: Path) -> tuple[str, ...]:
    return ("quantize", f"model={model}", f"output={tmp_path / 'out'}", f"calibration={model.parent / 'text.txt'}")


def settings(tmp_path: Path) -> dict[str, object]:
    found = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert isinstance(found, dict)
    return found


def test_quantize_writes_a_folder_that_generates(run_cli: RunCli, words: tuple[str, ...], tmp_path: Path) -> None:
    code, out, err = run_cli(*words, *SMALL)
    assert (code, err) == (0, "")
    for path in (tmp_path / "out").iterdir():
        assert f"wrote {path} (" in out
    assert "most changed output" in out
    assert "_proj" in out
    assert settings(tmp_path)["format"] == "pack-quantized"
    generating = ("quant=auto", "model.dtype=float32", "max_tokens=4", "cache.num_blocks=64")
    code, out, _ = run_cli("generate", "12: ", f"model={tmp_path / 'out'}", *generating)
    assert code == 0
    assert out


def test_a_model_is_replaced_only_by_force(run_cli: RunCli, model: Path, tmp_path: Path) -> None:
    words = ("quantize", f"model={model}", f"output={tmp_path / 'out'}", "method=rtn", "group_size=32")
    assert run_cli(*words)[0] == 0
    code, _, err = run_cli(*words, "format=awq")
    assert code == 2
    assert "--force" in err
    assert run_cli(*words, "format=awq", "--force")[0] == 0
    assert settings(tmp_path)["quant_method"] == "awq"


def test_an_unfinished_run_is_forgotten_by_restart(run_cli: RunCli, words: tuple[str, ...], tmp_path: Path) -> None:
    work = tmp_path / "out.quantizing"
    work.mkdir()
    (work / "settings.json").write_text('{"seed": 7}')
    code, _, err = run_cli(*words, *SMALL)
    assert code == 2
    assert "unfinished run with other settings" in err
    assert run_cli(*words, *SMALL, "--restart")[0] == 0
    assert not work.exists()


def test_a_home_folder_and_the_judgement_of_the_result(
    run_cli: RunCli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(model.parent))
    words = ("quantize", f"model={model}", f"output={tmp_path / 'out'}", "calibration=~/text.txt", *SMALL)
    assert run_cli(*words, "evaluate=2")[0] == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "On 2 windows, 1020 tokens of: Python's help topics" in card
    for figure in ("perplexity of the original", "perplexity / that of the original", "same likeliest token"):
        assert f"| {figure} |" in card


def test_weights_that_were_rounded_before_are_told_of(
    run_cli: RunCli, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HFCheckpoint, "stored_type", lambda *_: "Q8_0")
    code, _, err = run_cli("quantize", f"model={model}", f"output={tmp_path / 'out'}", "method=rtn")
    assert code == 0
    assert "the weights of model are rounded already, to blocks of Q8_0" in err


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (("method=gtpq",), "method"),
        (("method=rtn", "seed=1"), "seed: method=rtn does not read it, only method=gptq and awq and smoothquant"),
        (("method=awq", "damping=0.1"), "damping: method=awq does not read it, only method=gptq"),
        (("bits=5",), "bits"),
        (("group_size=0",), "group_size=0: it must be above 0, or -1"),
        (("method=smoothquant", "bits=4"), "bits=4: method=smoothquant makes int8 weights by row, bits=8"),
        (("method=smoothquant", "symmetric=false"), "without zero points"),
        (("scheduler=fcfs",), "quantize has no key scheduler"),
        (("group_sze=32",), "Did you mean 'group_size'?"),
        (("out",), "got 'out'; the folder is output=FOLDER"),
        (("damping=0",), "damping"),
    ],
)
def test_mistakes_are_told_before_anything_is_read(
    run_cli: RunCli, words: tuple[str, ...], tmp_path: Path, extra: tuple[str, ...], expected: str
) -> None:
    # Without a calibration file, so that keys of methods without one can be tried.
    code, out, err = run_cli(*words[:3], *extra)
    assert (code, out) == (2, "")
    assert expected in err
    assert list(tmp_path.iterdir()) == []


def test_an_output_must_be_named(run_cli: RunCli, model: Path) -> None:
    code, _, err = run_cli("quantize", f"model={model}")
    assert code == 2
    assert "output" in err
