"""Drafts through the real model runner: what is emitted, where it ends, what is left in memory, for known drafters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise, product
from typing import final

import pytest
import torch

from tokenloom.errors import PluginContractError
from tokenloom.interfaces.logits import LogitsConstraint
from tokenloom.interfaces.spec_decode import DraftBatch, Drafter, Proposal, Verifier
from tokenloom.request import FinishReason, Request
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.draft_stubs import DrawingDrafter, OracleDrafter, ScriptedDrafter
from tokenloom.testing.drafter_rig import NoDrafts
from tokenloom.testing.engine_harness import ChosenDrafts
from tokenloom.testing.tiny_decoder import TinyDecoder
from tokenloom.testing.tiny_engine import TinyEngine, TinySettings

K = 4
MODEL = TinyDecoder()
PROMPT = [3, 1, 4, 1, 5]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
TABLE = torch.randn(64, 64, generator=torch.Generator().manual_seed(7)) * 0.5
VERIFIERS = ("position_noise", "rejection")


def engine_with(drafter: Drafter, num_drafts: int = K, **settings: object) -> TinyEngine:
    policy = ChosenDrafts(lambda request, num_running: num_drafts)
    return TinyEngine(MODEL, drafter, policy, TinySettings(**settings))  # type: ignore[arg-type]


def plain_output(prompt: Sequence[int], max_tokens: int = 24) -> list[int]:
    """What greedy decoding says without drafts."""
    return list(_plain_output(tuple(prompt), max_tokens))


@cache
def _plain_output(prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
    engine = TinyEngine(MODEL, NoDrafts())
    engine.add("r", prompt, GREEDY.with_changes(max_tokens=max_tokens))
    return tuple(engine.run()["r"])


def oracle(num_right: int, *, as_tree: bool = False) -> OracleDrafter:
    """Right for `num_right` tokens, then wrong; for requests "r" with PROMPT."""
    truth = plain_output(PROMPT, 60)
    return OracleDrafter({"r": truth}, lambda request_id, length: num_right, MODEL.vocab_size, as_tree=as_tree)


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("num_right", range(K + 1))
@pytest.mark.parametrize("prompt_length", [3, 4, 5])
def test_memory_ends_at_the_last_verified_token(verifier: Verifier, num_right: int, prompt_length: int) -> None:
    """Right for j tokens, then wrong, across the borders of blocks: nothing rejected is counted or published."""
    prompt = PROMPT[:3] + PROMPT[: prompt_length - 3]
    truth = plain_output(prompt)
    known = {"r": truth}
    engine = engine_with(OracleDrafter(known, lambda name, length: num_right, MODEL.vocab_size), verifier=verifier)
    request = engine.add("r", prompt, GREEDY)
    while engine.engine.has_work():
        engine.step()
        assert engine.outputs["r"] == truth[: len(engine.outputs["r"])]
        if not request.is_finished:
            assert request.num_computed_tokens == request.num_tokens - 1
        num_published = len(engine.kv.pools[0].cache)
        assert num_published == (request.num_computed_tokens // 4), (
            "a block with a rejected token, or none of a full one"
        )
    assert engine.outputs["r"] == truth
    stats = engine.engine.stats
    assert (stats.num_accepted_tokens > 0) == (num_right > 0)
    # The cache now serves the same prompt and output again: their KV is right, and stays so behind the border.
    again = [*prompt, *truth[:14]]
    follow = engine.add("again", again, GREEDY.with_changes(max_tokens=6))
    known["again"] = truth[14:20]
    assert engine.run()["again"] == truth[14:20]
    assert follow.num_cached_tokens == (len(again) - 1) // 4 * 4


@pytest.mark.parametrize(("max_tokens", "stop_at"), list(product(range(1, K + 3), range(K + 1))))
@pytest.mark.parametrize("num_right", [K, 2])
def test_stop_and_cap_inside_an_accepted_run_end_it_as_without_drafts(
    num_right: int, max_tokens: int, stop_at: int
) -> None:
    """One of the tokens that greedy decoding gives is declared to be the end."""
    truth = plain_output(PROMPT)
    params = GREEDY.with_changes(max_tokens=max_tokens)
    stop = [truth[1 + stop_at]]
    engine, plain = engine_with(oracle(num_right)), TinyEngine(MODEL, NoDrafts())
    for each in (engine, plain):
        each.add("r", PROMPT, params, stop=stop)
        each.run()
    assert engine.outputs == plain.outputs
    ending = engine.last["r"]
    assert (ending.finish_reason, ending.stop_reason) == (plain.last["r"].finish_reason, plain.last["r"].stop_reason)
    first = truth.index(stop[0])
    assert ending.finish_reason is (FinishReason.STOP if first + 1 <= max_tokens else FinishReason.LENGTH)
    assert engine.engine.kv_usage()["active"] == 0


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_requests_whose_draft_lengths_differ_do_not_mix(verifier: Verifier) -> None:
    """Four requests with 0, 1, 3 and 5 drafts that change every step, some right, some wrong."""
    prompts = {str(number): [number + 1, 7, 9 - number][: 1 + number % 3] for number in range(4)}
    truth = {name: plain_output(prompt, 40) for name, prompt in prompts.items()}
    drafter = OracleDrafter(truth, lambda name, length: (int(name) + length) % 4, MODEL.vocab_size)
    lengths = (0, 1, 3, 5)
    policy = ChosenDrafts(lambda request, _: lengths[(int(request.request_id) + request.num_tokens) % 4])
    engine = TinyEngine(MODEL, drafter, policy, TinySettings(verifier=verifier))
    for name, prompt in prompts.items():
        engine.add(name, prompt, GREEDY.with_changes(max_tokens=40))
    assert engine.run() == truth
    assert {len(row.draft_token_ids) for plan in engine.plans for row in plan.rows} >= set(lengths)


@pytest.mark.parametrize("num_right", range(4))
@pytest.mark.parametrize("block_size", [1, 4])
def test_trees_are_walked_and_compacted(num_right: int, block_size: int) -> None:
    truth = plain_output(PROMPT)
    engine = engine_with(oracle(num_right, as_tree=True), num_drafts=7, block_size=block_size)
    engine.add("r", PROMPT, GREEDY)
    assert engine.run()["r"] == truth
    assert any(row.draft_parents for plan in engine.plans for row in plan.rows)
    if num_right:
        assert engine.engine.stats.num_accepted_tokens > 5


def test_a_drafter_sees_verified_tokens_only() -> None:
    """Whatever it proposed: its own wrong guesses never come back to it as tokens, and it cannot write to them."""
    engine: TinyEngine

    def propose(batch: DraftBatch, place: int) -> Proposal:
        request_id, token_ids = batch.request_ids[place], batch.token_ids[place]
        with pytest.raises(ValueError, match="read-only"):
            token_ids[0] = 1
        known = [*prompts[request_id], *engine.outputs.get(request_id, [])]
        assert token_ids.tolist()[: len(known)] == known
        num_outputs = len(token_ids) - batch.num_prompt_tokens[place]
        assert token_ids.tolist() == [*prompts[request_id], *truth[request_id][:num_outputs]]
        return Proposal(tuple((7 * len(known) + i) % MODEL.vocab_size for i in range(batch.max_drafts[place])))

    prompts = {"a": PROMPT, "b": [9, 8], "c": [5] * 6}
    truth = {name: plain_output(prompt) for name, prompt in prompts.items()}
    drafter = ScriptedDrafter(propose)
    engine = engine_with(drafter, num_blocks=14, budget=9)
    for name, prompt in prompts.items():
        engine.add(name, prompt, GREEDY)
    assert engine.run() == truth
    assert engine.engine.stats.num_preemptions > 0
    engine.add("d", PROMPT, GREEDY.with_changes(max_tokens=1))
    engine.run()
    assert set(drafter.forgotten) == {"a", "b", "c"}
    assert len(drafter.forgotten) > 3, "preempted requests are forgotten, too"


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("takes_trees", [True, False])
def test_a_drafter_is_told_where_trees_are_illegal(verifier: Verifier, takes_trees: bool) -> None:
    drafter = ScriptedDrafter(lambda batch, place: Proposal())
    engine = engine_with(drafter, verifier=verifier, takes_trees=takes_trees)
    engine.add("free", PROMPT, GREEDY)
    engine.add("bound", PROMPT, GREEDY, constraint=EvenTokens())
    engine.run()
    is_chain = {i: only for b in drafter.batches for i, only in zip(b.request_ids, b.chain_only, strict=True)}
    assert is_chain == {"free": verifier == "rejection" or not takes_trees, "bound": True}


def test_a_tree_for_rejection_sampling_is_a_breach_of_contract() -> None:
    engine = engine_with(ScriptedDrafter(lambda batch, place: Proposal((1, 2), (-1, -1))), verifier="rejection")
    engine.add("r", PROMPT, GREEDY)
    with pytest.raises(PluginContractError, match="no tree where only chains are legal"):
        engine.run()


@pytest.mark.parametrize(
    "probs",
    [torch.full((2, 63), 1 / 63), torch.full((1, 64), 1 / 64), torch.full((2, 64), 1 / 64).bfloat16()],
    ids=["narrow", "short", "bfloat16"],
)
def test_probabilities_of_another_shape_or_type_are_a_breach_of_contract(probs: torch.Tensor) -> None:
    engine = engine_with(ScriptedDrafter(lambda batch, place: Proposal((1, 2), probs=probs)))
    engine.add("r", PROMPT, GREEDY)
    with pytest.raises(PluginContractError, match=r"probs are fp32 \[drafts, vocabulary\]"):
        engine.run()


def test_a_drafter_is_told_how_each_request_samples() -> None:
    drafter = ScriptedDrafter(lambda batch, place: Proposal((1,) * batch.max_drafts[place]))
    engine = engine_with(drafter)
    params = {"a": SamplingParams(temperature=0.5, max_tokens=9), "b": GREEDY.with_changes(max_tokens=7)}
    engine.add("a", PROMPT, params["a"], seed=-5, choice=2)
    engine.add("b", [1, 2], params["b"], seed=8)
    engine.run()
    for batch, tokens in zip(drafter.batches, drafter.tokens, strict=True):
        for place, (request_id, sampling) in enumerate(zip(batch.request_ids, batch.sampling, strict=True)):
            assert sampling.params is params[request_id]
            assert (sampling.seed, sampling.choice) == {"a": (-5, 2), "b": (8, 0)}[request_id]
            assert sampling.position == len(tokens[place]) - batch.num_prompt_tokens[place] > 0


@pytest.mark.parametrize("has_probs", [True, False])
def test_rejection_sampling_repeats_itself_and_does_not_depend_on_the_batch(has_probs: bool) -> None:
    """A seed's tokens depend on the drafts, but on nothing else: the request alone gives them again."""
    params = SamplingParams(temperature=0.8, max_tokens=20, logprobs=3)

    def run(names: Sequence[str]) -> TinyEngine:
        engine = engine_with(DrawingDrafter(TABLE, has_probs=has_probs), verifier="rejection")
        for name in names:
            number = "abcdef".index(name)
            own = GREEDY if name == "c" else params.with_changes(top_k=9) if name == "d" else params
            engine.add(name, PROMPT[: 1 + number % 4], own, seed=number)
        engine.run()
        return engine

    together = run("abcdef")
    for name in "abcdef":
        alone = run(name)
        assert alone.outputs[name] == together.outputs[name], name
        assert [e.token_id for e in alone.logprobs[name]] == [e.token_id for e in together.logprobs[name]], name
    assert 0 < together.engine.stats.num_accepted_tokens < together.engine.stats.num_draft_tokens


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_logprobs_are_those_of_the_tokens_emitted(verifier: Verifier) -> None:
    engine = engine_with(DrawingDrafter(TABLE), verifier=verifier)
    engine.add("r", PROMPT, SamplingParams(temperature=2.0, max_tokens=16, logprobs=2), seed=3)
    tokens = engine.run()["r"]
    assert [entry.token_id for entry in engine.logprobs["r"]] == tokens
    assert engine.engine.stats.num_accepted_tokens > 0
    single = TinyEngine(MODEL, NoDrafts())
    for index, entry in enumerate(engine.logprobs["r"]):
        name = str(index)
        single.add(name, [*PROMPT, *tokens[:index]], SamplingParams(temperature=0.0, max_tokens=1, logprobs=20))
        single.run()
        expected = dict(single.logprobs[name][0].top)
        for token_id, value in entry.top:
            assert value == pytest.approx(expected[token_id], abs=1e-4)
        assert entry.logprob == pytest.approx(expected.get(entry.token_id, entry.logprob), abs=1e-4)
        assert entry.logprob <= entry.top[0][1]


@final
class EvenTokens(LogitsConstraint):
    """Even tokens, none twice in a row."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self.tokens = list(tokens)

    def fork(self) -> EvenTokens:
        return EvenTokens(self.tokens)

    def allowed_mask(self, out: torch.Tensor) -> None:
        out.copy_(torch.arange(len(out)) % 2 == 0)
        if self.tokens:
            out[self.tokens[-1]] = False

    def advance(self, token_id: int) -> bool:
        if token_id % 2 == 1 or token_id in self.tokens[-1:]:
            return False
        self.tokens.append(token_id)
        return True

    def rollback(self, num_tokens: int) -> None:
        del self.tokens[len(self.tokens) - num_tokens :]

    @property
    def is_terminated(self) -> bool:
        return False


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("num_blocks", [400, 20])
def test_constraints_hold_inside_a_run_of_drafts(verifier: Verifier, num_blocks: int) -> None:
    """Drafts that the constraint forbids are refused; its state follows the tokens emitted, through preemption too."""
    engine = engine_with(DrawingDrafter(TABLE), verifier=verifier, num_blocks=num_blocks)
    requests: list[Request] = []
    for number in range(6):
        params = SamplingParams(temperature=0.0 if number == 0 else 1.2, max_tokens=20)
        constraint = EvenTokens() if number != 5 else None
        requests.append(engine.add(str(number), [number + 1, 5, 9], params, seed=number, constraint=constraint))
    engine.run()
    for name, tokens in engine.outputs.items():
        assert engine.last[name].finish_reason is FinishReason.LENGTH
        if name != "5":
            assert all(token % 2 == 0 for token in tokens)
            assert all(one != other for one, other in pairwise(tokens))
    assert engine.engine.stats.num_accepted_tokens > 0
    assert (engine.engine.stats.num_preemptions > 0) == (num_blocks == 20)


def test_the_last_drafts_of_a_preempted_request_take_their_probabilities_with_them() -> None:
    """So little memory and budget that drafts are cut and requests come back: no draft meets another one's numbers."""
    engine = engine_with(DrawingDrafter(TABLE), num_drafts=6, verifier="rejection", num_blocks=16, budget=11)
    for number in range(6):
        params = SamplingParams(temperature=1.0, max_tokens=26)
        engine.add(str(number), [number + 1, 2, 3], params, seed=number)
    outputs = engine.run()
    assert all(len(tokens) == 26 for tokens in outputs.values())
    verified = {len(row.draft_token_ids) for plan in engine.plans for row in plan.rows}
    assert len(verified) > 3, "no draft was cut"
    assert engine.engine.stats.num_preemptions > 0
