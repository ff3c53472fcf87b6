"""`tokenloom train-drafter`: heads that the drafters load, found again by their target; mistakes that it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.core.cli.conftest import RunCli
from tests.core.drafter_training.tiny_corpus import ENGINE, make, write_target
from tokenloom import LLM, SamplingParams
from tokenloom.errors import ConfigError
from tokenloom_spec_decode.shipped_heads import shipped_head

TRAINING = ("conversations=256", "minutes=1", "epochs=1", "drafts=2", "draft_vocab_size=64", "precision=float32")


@pytest.mark.parametrize("kind", ["medusa", "eagle3"])
def test_a_trained_head_drafts(kind: str, run_cli: RunCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From data that is there; what is said stays the same, and some drafts are right."""
    model, output = write_target(tmp_path / "model"), tmp_path / "head"
    make(model, tmp_path / "data", 4)
    monkeypatch.setattr("tokenloom.drafter_training.training_job.make_corpus", lambda *_: None)
    words = (f"kind={kind}", f"model={model}", f"output={output}", f"data={tmp_path / 'data'}", *TRAINING, *ENGINE)
    code, out, err = run_cli("train-drafter", *words)
    assert code == 0, err
    assert "right if those before are" in out
    assert f"spec_decode={kind} spec_decode.source={output}" in out
    card = (output / "README.md").read_text()
    assert f"# `{kind}` head for model" in card
    assert str(tmp_path) not in card
    assert "model=MODEL" in card
    code, _, err = run_cli("train-drafter", *words, "draft_vocab_size=32")
    assert code == 2
    assert re.search(r"draft_vocab_size=32: the head in output=.* was begun with 64 tokens", err), err
    other_place = [f"output={tmp_path / 'next'}" if word.startswith("output=") else word for word in words]
    code, _, err = run_cli("train-drafter", *other_place, f"init={output}", "draft_vocab_size=32")
    assert code == 2
    assert re.search(r"draft_vocab_size=32: the head in init=.* drafts 64 tokens", err), err
    target = json.loads((output / "config.json").read_text())["tokenloom_target"]
    assert shipped_head(kind, model, "", tmp_path) == output
    other = write_target(tmp_path / "other")
    with (other / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"!")
    with pytest.raises(ConfigError, match=f"missing; the {kind} heads that tokenloom brings are for {target['name']}"):
        shipped_head(kind, other, "missing", tmp_path)
    prompts, params = [[5, 9, 200, 31], [7] * 9], SamplingParams(temperature=0.0, max_tokens=24)
    answers = []
    for drafter in ((), (f"spec_decode={kind}", f"spec_decode.source={output}")):
        with LLM(str(model), [*ENGINE, *drafter]) as llm:
            answers.append([found.outputs[0].token_ids for found in llm.generate(prompts, params)])
            num_drafts = llm.engine.stats.num_draft_tokens
    assert answers[0] == answers[1]
    assert num_drafts > 10


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("cache=hash", "cache=hash: train-drafter hears the states of every token"),
        ("spec_decode=ngram", r"leave spec_decode= out \(none\)"),
        ("kind=eagle", "kind"),
        ("drafts=0", "drafts"),
    ],
)
def test_what_cannot_be_trained_is_refused(word: str, message: str, run_cli: RunCli, tmp_path: Path) -> None:
    words = [w for w in ("kind=medusa", f"output={tmp_path / 'head'}") if w.split("=")[0] != word.split("=")[0]]
    code, _, err = run_cli("train-drafter", *words, word)
    assert code == 2
    assert re.search(message, err), err
