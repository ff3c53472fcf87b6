"""Noise depends on (seed, choice, output position) alone: a seeded request gives the same tokens, come what may."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.preempting_scheduler import PreemptingConfig
from tokenloom import LLM, SamplingParams
from tokenloom.interfaces.contract import PluginChoice

PROMPT = [11, 12, 13, 14] * 4 + [7]
OTHERS = [[3, 1, 4, 1, 5], [9] * 40, [2, 7, 1, 8, 2, 8] * 5]


def seeded(seed: int = 5, **changes: object) -> SamplingParams:
    return SamplingParams(
        temperature=0.8, top_p=0.95, top_k=40, seed=seed, max_tokens=24, ignore_eos=True
    ).with_changes(**changes)


@pytest.fixture
def alone(build_llm: Callable[..., LLM]) -> list[int]:
    """The request's tokens when it runs alone, without cache and drafts."""
    return tokens(build_llm("cache=none"), [PROMPT], [seeded()])[0]


def tokens(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]


def test_seeded_request_is_the_same_in_a_batch(build_llm: Callable[..., LLM], alone: list[int]) -> None:
    params = [seeded(seed) for seed in (1, 2, 3)]
    found = tokens(build_llm(), [*OTHERS, PROMPT], [*params, seeded()])
    assert found[-1] == alone
    assert len(set(alone)) > 4


def test_seeded_request_is_the_same_with_chunks(build_llm: Callable[..., LLM], alone: list[int]) -> None:
    llm = build_llm(max_num_batched_tokens=3, max_num_seqs=2)
    assert tokens(llm, [OTHERS[1], PROMPT], [seeded(1), seeded()])[1] == alone


def test_seeded_request_is_the_same_when_preempted(build_llm: Callable[..., LLM], alone: list[int]) -> None:
    scheduler = PluginChoice("scheduler", "preempting", PreemptingConfig(stride=2, max_num_seqs=4))
    llm = build_llm(scheduler=scheduler)
    assert tokens(llm, [PROMPT, OTHERS[0]], [seeded(), seeded(1)])[0] == alone
    assert llm.engine.stats.num_preemptions > 5


@pytest.mark.parametrize("temperature", [0.8, 0.05])
def test_speculation_changes_no_seeded_token(build_llm: Callable[..., LLM], temperature: float) -> None:
    params = seeded(temperature=temperature, max_tokens=60)
    plain = tokens(build_llm("cache=none"), [PROMPT], [params])
    llm = build_llm("spec_decode=ngram")
    assert tokens(llm, [PROMPT], [params]) == plain
    assert llm.engine.stats.num_draft_tokens > 0
    if temperature < 0.1:
        assert 0 < llm.engine.stats.num_accepted_tokens < llm.engine.stats.num_draft_tokens


def test_choices_differ_and_are_repeatable(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm()
    first = [choice.token_ids for choice in llm.generate([PROMPT], seeded(n=4))[0].outputs]
    again = [choice.token_ids for choice in llm.generate([PROMPT], seeded(n=4))[0].outputs]
    assert len({tuple(ids) for ids in first}) == 4
    assert first == again


def test_first_choice_equals_the_single_one(build_llm: Callable[..., LLM], alone: list[int]) -> None:
    assert build_llm().generate([PROMPT], seeded(n=3))[0].outputs[0].token_ids == alone


def test_requests_without_seed_differ_but_follow_the_engine_seed(build_llm: Callable[..., LLM]) -> None:
    params = seeded(seed=None)
    first = tokens(build_llm(seed=1), [PROMPT, PROMPT], [params, params])
    again = tokens(build_llm(seed=1), [PROMPT, PROMPT], [params, params])
    other = tokens(build_llm(seed=2), [PROMPT, PROMPT], [params, params])
    assert first[0] != first[1]
    assert first == again
    assert first != other


def test_deterministic_results_do_not_depend_on_the_batch(build_llm: Callable[..., LLM]) -> None:
    """Outside fp32 as well: the same bits alone, in a batch, in chunks and with drafts."""
    greedy = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, logprobs=0)

    def outcome(llm: LLM, prompts: list[list[int]]) -> tuple[list[int], list[float]]:
        choice = llm.generate(prompts, greedy)[-1].outputs[0]
        assert choice.logprobs is not None
        return choice.token_ids, [entry.logprob for entry in choice.logprobs]

    settings = ("model.dtype=bfloat16", "engine.deterministic=true")
    alone = outcome(build_llm(*settings, "cache=none"), [PROMPT])
    assert outcome(build_llm(*settings), [*OTHERS, PROMPT]) == alone
    assert outcome(build_llm(*settings, max_num_batched_tokens=5, max_num_seqs=2), [OTHERS[1], PROMPT]) == alone
    assert outcome(build_llm(*settings, spec_decode="ngram"), [OTHERS[0], PROMPT]) == alone
