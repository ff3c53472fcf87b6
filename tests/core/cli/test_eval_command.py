"""`tokenloom eval` from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny_model import write_tiny_llama

RunCli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A model, and a text and questions for it."""
    folder = tmp_path_factory.mktemp("small")
    write_tiny_llama(folder / "model", with_tokenizer=True)
    (folder / "book.txt").write_text("".join(f"{i}: {i * i} apples. " for i in range(20)))
    question = {"context": "Two and two is", "choices": ["four", "eleven"], "answer": 0}
    (folder / "questions.jsonl").write_text(f"{json.dumps(question)}\n" * 3)
    return (f"model={folder / 'model'}", "cache.num_blocks=64", "engine.num_threads=1", "model.dtype=float32")


@pytest.fixture
def folder(small: tuple[str, ...]) -> Path:
    return Path(small[0].removeprefix("model=")).parent


def test_perplexity_is_what_is_run_if_nothing_is_named(
    run_cli: RunCli, small: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "found.json"
    words = (f"text={folder / 'book.txt'}", "window=50", "num_windows=3", f"output={target}")
    code, out, err = run_cli("eval", *small, *words)
    assert (code, err) == (0, "")
    result = json.loads(target.read_text())
    figures = result["tasks"]["perplexity"]
    assert list(result["tasks"]) == ["perplexity"]
    assert (figures["text"], figures["window"], figures["stride"], figures["num_tokens"]) == ("book.txt", 50, 50, 147)
    assert f"{figures['perplexity']:.4f}" in out
    assert result["reference"] is None
    assert result["config"]["window"] == 50
    assert result["provenance"]["packages"]["tokenloom"]


def test_a_reference_is_the_model_but_for_what_is_said(
    run_cli: RunCli, small: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "found.json"
    words = (f"text={folder / 'book.txt'}", "window=50", "num_windows=2", f"output={target}")
    code, out, _ = run_cli(
        "eval",
        "run",
        "perplexity",
        *small,
        *words,
        "quant=int8",
        "quant.include_embedding=true",
        "reference.quant=none",
    )
    assert code == 0
    result = json.loads(target.read_text())
    assert result["config"]["quant"]["include_embedding"] is True
    assert result["reference"]["config"]["quant"]["name"] == "none"
    assert result["reference"]["config"]["model"] == result["config"]["model"]
    assert 0 < result["tasks"]["perplexity"]["kl_mean"] < 0.2
    assert "same likeliest token" in out
    assert "reference" in out


def test_several_tasks_run_on_one_model(run_cli: RunCli, small: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "found.json"
    words = (f"questions={folder / 'questions.jsonl'}", "lengths=[300]", "depths=[0,1]", "trials=1", f"output={target}")
    code, out, _ = run_cli("eval", "retrieval", "multiple_choice", *small, *words)
    assert code == 0
    tasks = json.loads(target.read_text())["tasks"]
    assert list(tasks) == ["multiple_choice", "retrieval"]
    assert tasks["multiple_choice"]["num_questions"] == 3
    assert tasks["retrieval"]["by_length"]["300"]["by_depth"].keys() == {"0", "1"}
    assert "acc_norm" in out
    assert "300 tokens" in out


def test_variants_stand_side_by_side(run_cli: RunCli, small: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    target, plot = tmp_path / "found.json", tmp_path / "found.png"
    words = (f"text={folder / 'book.txt'}", "window=50", "num_windows=2", f"output={target}", f"plot={plot}")
    timed = ("speed_prompt_tokens=20", "speed_output_tokens=4", "repetitions=1")
    code, out, _ = run_cli("eval", "compare", *small, *words, *timed, "quant=none,int8")
    assert code == 0
    found = json.loads(target.read_text())
    plain, rounded = (found["variants"][f"quant={name}"] for name in ("none", "int8"))
    assert found["failed"] == {}
    assert found["reference"]["config"]["quant"]["name"] == "none"
    assert plain["tasks"]["perplexity"]["kl_max"] == 0.0 < rounded["tasks"]["perplexity"]["kl_max"]
    assert rounded["memory"]["weight_bytes"] < plain["memory"]["weight_bytes"]
    # Keys and values, in two layers of two heads of 16 numbers in fp32.
    assert plain["memory"]["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 4
    assert len(plain["speed"]["decode_tok_s_runs"]) == 1
    for word in ("quant=int8", "reference", "same token", "decode tok/s"):
        assert word in out
    assert plot.stat().st_size > 5_000


def test_variants_may_be_other_models(run_cli: RunCli, small: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    other = write_tiny_llama(tmp_path / "other", with_tokenizer=True, seed=3)
    target = tmp_path / "found.json"
    words = (f"text={folder / 'book.txt'}", "window=50", "num_windows=2", "speed=false", f"output={target}")
    variants = ("--variant", f"other: model={other}", "--variant", "rounded: quant=int8")
    code, out, _ = run_cli("eval", "compare", *small, *words, *variants, "model.dtype=float32,bfloat16")
    assert code == 0
    found = json.loads(target.read_text())
    assert list(found["variants"]) == [
        f"{name} model.dtype={dtype}" for name in ("other", "rounded") for dtype in ("float32", "bfloat16")
    ]
    kl = {name: result["tasks"]["perplexity"]["kl_mean"] for name, result in found["variants"].items()}
    assert kl["other model.dtype=float32"] > 1 > kl["rounded model.dtype=float32"] > 0
    assert "decode" not in out


def test_a_variant_that_fails_does_not_take_the_others_with_it(
    run_cli: RunCli, small: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "found.json"
    words = (f"text={folder / 'book.txt'}", "window=50", "num_windows=2", "speed=false", f"output={target}")
    (tmp_path / "empty").mkdir()
    variants = ("--variant", f"gone: model={tmp_path / 'empty'}", "--variant", "there: quant=int8")
    code, out, err = run_cli("eval", "compare", *small, *words, *variants)
    assert code == 1
    assert "failed: gone: " in err
    assert "there" in out
    found = json.loads(target.read_text())
    assert (list(found["variants"]), list(found["failed"])) == (["there"], ["gone"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("perplexty",), "there is no task 'perplexty'. Did you mean 'perplexity'?"),
        (("comparr",), "Did you mean 'compare'?"),
        (("questions=q.jsonl",), "questions: only of the task multiple_choice"),
        (("multiple_choice",), "needs questions=FILE"),
        (("multiple_choice", "questions=missing.jsonl"), "questions=missing.jsonl: No such file"),
        (("retrieval", "window=64"), "window: only of the task perplexity"),
        (("retrieval", "reference.quant=none"), "a reference is only of the task perplexity"),
        (("depths=[2]", "retrieval"), "depths"),
        (("window=1",), "window=1"),
        (("stride=60", "window=50"), "stride=60 would skip tokens"),
        (("text=missing.txt",), "text=missing.txt: No such file"),
        (("reference.window=3",), "window holds for model and reference alike"),
        (("reference.quant=nonsense",), "nonsense"),
        (("executor=simulated",), "executor=simulated runs no model"),
        (("output=no/such/folder/x.json",), "its folder does not exist"),
        (("output=x.json", "text=x.json"), "text and output name the same file"),
        (("compare", "window=32,64"), "must be equal for all variants"),
        (("compare", "speed=false", "repetitions=2"), "repetitions: of no meaning with speed=false"),
        (("compare", "plot=x.jpeg"), "must end in"),
        (("compare", "--variant", "quant=int8"), "expected 'NAME: KEY=VALUE ...'"),
        (("compare", "--variant", "a: quant=int8", "--variant", "a: quant=none"), "two variants are called 'a'"),
    ],
)
def test_mistakes_are_told_before_a_model_is_loaded(
    run_cli: RunCli,
    small: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    is_compare = words[0] == "compare"
    code, out, err = run_cli("eval", *words[:is_compare], *small, *words[is_compare:])
    assert (code, out) == (2, "")
    assert message in err
    assert not list(tmp_path.iterdir())


def test_options_may_come_first(run_cli: RunCli, small: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    (tmp_path / "quant").mkdir()
    (tmp_path / "quant" / "mine.yaml").write_text("name: int8\ninclude_embedding: true\n")
    words = (f"text={folder / 'book.txt'}", "window=50", "num_windows=1", f"output={tmp_path / 'found.json'}")
    code, out, err = run_cli("eval", "--config-dir", str(tmp_path), *small, *words, "quant=mine")
    assert (code, err) == (0, "")
    assert "perplexity" in out
    assert json.loads((tmp_path / "found.json").read_text())["config"]["quant"]["include_embedding"] is True


def test_the_reference_of_variants_is_not_quantized_unless_asked_for(
    run_cli: RunCli, small: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    target = tmp_path / "found.json"
    words = (f"text={folder / 'book.txt'}", "window=50", "num_windows=2", "speed=false", f"output={target}")
    swept = ("quant=int8", "quant.include_embedding=false,true")
    code, _, _ = run_cli("eval", "compare", *small, *words, *swept, "reference.model.dtype=bfloat16")
    assert code == 0
    found = json.loads(target.read_text())
    config = found["reference"]["config"]
    assert (config["quant"]["name"], config["model"]["dtype"]) == ("none", "bfloat16")
    assert list(found["variants"]) == [f"quant.include_embedding={value}" for value in (False, True)]


def test_help_is_there_for_both_forms(run_cli: RunCli) -> None:
    code, out, _ = run_cli("eval", "-h")
    assert code == 0
    assert "compare" in out
    assert "run" in out
    code, out, _ = run_cli("eval", "compare", "-h")
    assert code == 0
    assert "--variant" in out


def test_keys_are_explained(run_cli: RunCli) -> None:
    code, out, _ = run_cli("explain", "num_windows")
    assert code == 0
    assert "tokenloom eval run" in out
    assert "tokenloom eval compare" in out
