"""Grammars under drafts of every kind: the tokens are those of no drafts, and a grammar's end is found among them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch

from tests.core.structured.walking import compiled
from tokenloom.interfaces.spec_decode import DraftBatch, Drafter, Proposal, Verifier
from tokenloom.request import FinishReason
from tokenloom.sampling_params import SamplingParams
from tokenloom.structured import GrammarSpec
from tokenloom.testing.draft_stubs import DrawingDrafter, OracleDrafter, ScriptedDrafter
from tokenloom.testing.drafter_rig import NoDrafts
from tokenloom.testing.engine_harness import ChosenDrafts
from tokenloom.testing.tiny_decoder import TinyDecoder
from tokenloom.testing.tiny_engine import TinyEngine, TinySettings
from tokenloom.text import Tokenizer

K = 4
PROMPT = [30, 10, 40, 10, 50]
END = 2
NAMES = "abcde"
SPEC = GrammarSpec.json_schema(
    {
        "type": "object",
        "properties": {"on": {"type": "boolean"}, "word": {"type": "string", "maxLength": 5}},
        "required": ["on", "word"],
        "additionalProperties": False,
        "x-guidance": {"whitespace_pattern": " {1,3}"},
    }
)
PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=60),
    "sampled": SamplingParams(temperature=0.9, max_tokens=60),
}


@pytest.fixture(scope="module")
def model(byte_level: Tokenizer) -> TinyDecoder:
    return TinyDecoder(byte_level.vocab_size)


def run(
    model: TinyDecoder,
    tokenizer: Tokenizer,
    drafter: Drafter,
    params: SamplingParams,
    *,
    names: Sequence[str] = NAMES,
    num_blocks: int = 400,
    verifier: Verifier = "position_noise",
) -> TinyEngine:
    settings = TinySettings(num_blocks=num_blocks, verifier=verifier, block_size=8)
    engine = TinyEngine(model, drafter, ChosenDrafts(lambda request, num_running: K), settings)
    for number, name in enumerate(names):
        prompt = PROMPT[: 2 + number]
        engine.add(name, prompt, params, seed=number, stop=[END], constraint=compiled(SPEC, tokenizer))
    engine.run()
    for name in names:
        assert engine.last[name].finish_reason in (FinishReason.STOP, FinishReason.LENGTH), engine.last[name].error
        if engine.last[name].finish_reason is FinishReason.STOP:
            assert set(json.loads(tokenizer.decode(engine.outputs[name]))) == {"on", "word"}
    assert FinishReason.STOP in {engine.last[name].finish_reason for name in names}
    return engine


@pytest.fixture(scope="module")
def plain(model: TinyDecoder, byte_level: Tokenizer) -> dict[str, dict[str, list[int]]]:
    """What each kind of request says without drafts."""
    return {kind: run(model, byte_level, NoDrafts(), params).outputs for kind, params in PARAMS.items()}


@pytest.mark.parametrize("num_right", [0, 2, K])
@pytest.mark.parametrize("kind", PARAMS)
def test_drafts_that_are_right_for_a_while(
    model: TinyDecoder, byte_level: Tokenizer, plain: dict[str, dict[str, list[int]]], kind: str, num_right: int
) -> None:
    """The wrong ones are mostly illegal; beyond the truth come tokens behind the grammar's end."""
    oracle = OracleDrafter(plain[kind], lambda name, length: num_right, model.vocab_size, as_tree=True)
    engine = run(model, byte_level, oracle, PARAMS[kind])
    assert engine.outputs == plain[kind]
    assert (engine.engine.stats.num_accepted_tokens > 0) == (num_right > 0)
    assert engine.engine.kv_usage()["active"] == 0


def test_drafts_that_go_on_behind_the_end(
    model: TinyDecoder, byte_level: Tokenizer, plain: dict[str, dict[str, list[int]]]
) -> None:
    """End, end, end: the first may be right, none behind it is."""
    drafter = ScriptedDrafter(lambda batch, place: Proposal((END,) * batch.max_drafts[place]))
    assert run(model, byte_level, drafter, PARAMS["greedy"]).outputs == plain["greedy"]


def test_drafters_may_not_propose_trees(model: TinyDecoder, byte_level: Tokenizer) -> None:
    asked: list[bool] = []

    def propose(batch: DraftBatch, place: int) -> Proposal:
        asked.append(batch.chain_only[place])
        return Proposal()

    run(model, byte_level, ScriptedDrafter(propose), PARAMS["greedy"])
    assert asked
    assert all(asked)


@pytest.mark.parametrize("verifier", ["position_noise", "rejection"])
@pytest.mark.parametrize("num_blocks", [400, 14])
def test_drawn_drafts_keep_to_the_grammar_through_preemption(
    model: TinyDecoder,
    byte_level: Tokenizer,
    plain: dict[str, dict[str, list[int]]],
    verifier: Verifier,
    num_blocks: int,
) -> None:
    table = torch.randn(model.vocab_size, model.vocab_size, generator=torch.Generator().manual_seed(1))
    drafter, params = DrawingDrafter(table), PARAMS["sampled"]
    engine = run(model, byte_level, drafter, params, num_blocks=num_blocks, verifier=verifier)
    assert (engine.engine.stats.num_preemptions > 0) == (num_blocks == 14)
    if verifier == "position_noise":
        assert engine.outputs == plain["sampled"]
