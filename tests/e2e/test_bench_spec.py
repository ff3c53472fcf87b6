"""`tokenloom bench spec` on the tiny model, as a person types it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenloom.cli import main
from tokenloom.llm import LLM
from tokenloom.results import RequestOutput
from tokenloom.sampling_params import SamplingParams


@pytest.fixture
def words(tiny_folder: Path, tmp_path: Path) -> list[str]:
    lines = [
        {"category": "repeats", "turns": ["abc abc abc abc abc abc"]},
        {"category": "other", "turns": ["Once upon a time"]},
        {"category": "repeats", "turns": ["to be or not to be or not to be"]},
        {"category": "repeats", "turns": ["beyond the limit"]},
    ]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    engine = [f"model={tiny_folder}", "model.dtype=float32", "cache.num_blocks=100", "engine.num_threads=1"]
    return [*engine, f"prompts={tmp_path / 'prompts.jsonl'}", "max_tokens=40", "limit=2"]


def test_drafters_are_compared_by_category(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [f"output={tmp_path / 'out.json'}", f"plot={tmp_path / 'plot.svg'}"]
    sweep = ["spec_decode=none,ngram,suffix", "repetitions=2"]
    assert main(["bench", "spec", *words, *files, *sweep]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "differ from those without drafts" not in printed.out
    for word in ("repeats", "other", "all", "spec_decode=ngram", "spec_decode=suffix", "2/2 equal", "3/3 equal"):
        assert word in printed.out
    assert (tmp_path / "plot.svg").stat().st_size > 5_000
    result = json.loads((tmp_path / "out.json").read_text())
    assert list(result["baselines"]) == ["spec_decode=none"]
    baseline = result["baselines"]["spec_decode=none"]
    assert list(baseline["none"]) == ["repeats", "other", "all"]
    assert baseline["config"]["scheduler"]["max_num_seqs"] == 1
    assert list(baseline["drafters"]) == ["spec_decode=ngram", "spec_decode=suffix"]
    for drafter in baseline["drafters"].values():
        figures = drafter["categories"]
        assert figures["all"]["num_requests"] == figures["all"]["num_equal_answers"] == 3
        assert len(figures["all"]["speedups"]) == len(drafter["runs"]) == 2
        assert figures["all"]["num_draft_tokens"] > 0
        assert figures["all"]["acceptance_length"] > 1.0
        assert figures["all"]["theory"]["predicted"] > 0.0
        assert figures["all"]["num_output_tokens"] == sum(
            figures[name]["num_output_tokens"] for name in ("repeats", "other")
        )
        assert "token_ids" not in drafter["runs"][0]["all"]
        for run in drafter["runs"]:
            for category in run.values():
                assert all(category["tried_by_position"].values()), "positions that other categories reached"


def test_each_drafter_has_a_baseline_with_its_other_settings(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = ["spec_decode=ngram", "spec_decode.policy=adaptive", "cache=none,hash", "concurrency=3", "limit=1"]
    assert main(["bench", "spec", *words, *sweep, f"output={tmp_path / 'out.json'}"]) == 0
    result = json.loads((tmp_path / "out.json").read_text())["baselines"]
    assert {name: list(entry["drafters"]) for name, entry in result.items()} == {
        "spec_decode=none cache=none": ["cache=none"],
        "spec_decode=none cache=hash": ["cache=hash"],
    }
    for name, entry in result.items():
        assert entry["config"]["spec_decode"]["name"] == "none"
        assert f"cache={entry['config']['cache']['name']}" in name
        assert entry["config"]["scheduler"]["max_num_seqs"] == 3


Call = tuple[str, list[list[int]], int | None]
"""The drafter, the prompts and the most tokens of a call of `LLM.generate`."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    calls: list[Call] = []
    generate = LLM.generate

    def recording(
        llm: LLM, prompts: list[list[int]], params: SamplingParams, *, on_step: Callable[[], None] | None = None
    ) -> list[RequestOutput]:
        calls.append((llm.config.engine.spec_decode.name, list(prompts), params.max_tokens))
        return generate(llm, prompts, params, on_step=on_step)

    monkeypatch.setattr(LLM, "generate", recording)
    return calls


def test_all_are_warmed_alike_and_repeated_in_turn(words: list[str], calls: list[Call]) -> None:
    assert main(["bench", "spec", *words, "spec_decode=ngram,suffix", "repetitions=2", "concurrency=2"]) == 0
    turns = [calls[start : start + 3] for start in range(0, len(calls), 3)]
    assert [{name for name, _, _ in turn} for turn in turns] == [{"none"}, {"ngram"}, {"suffix"}] * 2
    first = [call[1:] for call in turns[0]]
    assert all([call[1:] for call in turn] == first for turn in turns), "the same requests for each"
    (warm_up, warm_up_tokens), *measured = first
    assert [len(prompts) for prompts, _ in measured] == [2, 1]
    asked = [prompt for prompts, _ in measured for prompt in prompts]
    assert len(warm_up) == 3, "as many as run at a time, and the longest"
    assert not any(prompt in asked for prompt in warm_up), "what is measured must not be known from the warm-up"
    assert len(warm_up[0]) == max(map(len, asked))
    assert warm_up_tokens == 32


def test_side_by_side_each_category_runs_on_one_after_the_other(words: list[str], calls: list[Call]) -> None:
    sweep = ["spec_decode=ngram,suffix", "repetitions=2", "side_by_side=true"]
    assert main(["bench", "spec", *words, *sweep]) == 0
    assert [name for name, _, _ in calls] == ["none", "ngram", "suffix"] * 6
    turns = [calls[start : start + 3] for start in range(0, len(calls), 3)]
    assert all(call[1:] == turn[0][1:] for turn in turns for call in turn), "the same requests for each"
    assert [turn[0][2] for turn in turns] == [32, 40, 40] * 2, "a warm-up, two categories"


def test_a_rehearsal_teaches_drafters_that_learn(words: list[str], tmp_path: Path) -> None:
    taught, output = {}, tmp_path / "out.json"
    for rehearse in ("false", "true"):
        command = ["spec_decode=synthetic", "spec_decode.acceptance=[1.0]", f"rehearse={rehearse}"]
        assert main(["bench", "spec", *words, *command, f"output={output}"]) == 0
        baseline = json.loads(output.read_text())["baselines"]["spec_decode=none"]
        taught[rehearse] = baseline["drafters"]["spec_decode=synthetic"]["categories"]["all"]
    assert taught["false"]["num_draft_tokens"] == 0
    assert taught["false"]["theory"] is None
    assert taught["true"]["acceptance_by_position"] == [1.0] * 4
    assert taught["true"]["num_equal_answers"] == 3
    assert taught["true"]["acceptance_length"] > 4.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["spec_decode=none"], "nothing to compare"),
        (["spec_decode=ngram", "scheduler.max_num_seqs=4"], "set concurrency"),
        (["spec_decode=ngram,ngrm"], "Did you mean 'ngram'"),
        (["spec_decode=ngram", "plot=plot.txt"], "must end in"),
        (["spec_decode=ngram", "output=missing/out.json"], "folder does not exist"),
        (["spec_decode=ngram", "prompts=missing.jsonl"], "prompts=missing.jsonl"),
        (["spec_decode=ngram", "concurency=2"], "concurrency"),
    ],
)
def test_mistakes_are_refused_before_anything_is_loaded(
    words: list[str], wrong: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "spec", *words, *wrong]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_a_category_may_not_have_the_name_of_all(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"category": "all", "turns": ["x"]}')
    assert main(["bench", "spec", *words, "spec_decode=ngram"]) == 2
    assert "a category is called all" in capsys.readouterr().err


@pytest.mark.parametrize("side_by_side", ["false", "true"])
def test_one_that_fails_costs_the_others_nothing(
    side_by_side: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.json"
    sweep = ["spec_decode=ngram", "cache.num_blocks=3,50", "cache.block_size=16", f"output={output}"]
    sweep += [f"side_by_side={side_by_side}"]
    assert main(["bench", "spec", *words, *sweep]) == 1
    captured = capsys.readouterr()
    assert "failed: spec_decode=none cache.num_blocks=3: " in captured.err
    assert list(json.loads(output.read_text())["baselines"]) == ["spec_decode=none cache.num_blocks=50"]
