"""Every sampling option through `LLM`: the same tokens alone, in a batch, in chunks, preempted and with drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.core.sampling.plain_options import OptionRow, plain_processed
from tests.e2e.conftest import TINY_OVERRIDES
from tests.e2e.option_plugins import ScriptedConfig
from tests.e2e.plain_model import load_plain_model
from tests.e2e.preempting_scheduler import PreemptingConfig
from tokenloom import LLM, SamplingParams
from tokenloom.compose import compose_config
from tokenloom.errors import RequestError
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.spec_decode import Verifier
from tokenloom.plugins import Registry
from tokenloom.results import RequestOutput
from tokenloom_spec_decode.fixed_policy import FixedPolicyConfig

PROMPTS = [[11, 12, 13, 14] * 4 + [7], [3, 1, 4, 1, 5], [9] * 40, [2, 7, 1, 8, 2, 8] * 5]
OPTIONS: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.4},
    "rewards": {"repetition_penalty": 0.7, "presence_penalty": -0.5, "frequency_penalty": -0.2},
    "tokens": {
        "logit_bias": {index: 2.0 - index % 5 for index in range(0, 320, 3)},
        "allowed_token_ids": [*range(40, 240), 7, 11],
        "bad_words": ["ab", "c", "de f"],
    },
    "ngrams": {"logits_processors": {"no_repeat_ngram": {"size": 2}}},
    "all": {
        "repetition_penalty": 1.1,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "logit_bias": dict.fromkeys(range(0, 320, 2), 1.5),
        "allowed_token_ids": list(range(5, 260)),
        "bad_words": ["ab", "c", "de f"],
        "min_tokens": 12,
        "stop_token_ids": [*range(40, 60)],
        "logprobs": 3,
        "prompt_logprobs": 2,
        "logits_processors": {"faulty": {"fault": "none"}, "no_repeat_ngram": {"size": 3, "include_prompt": False}},
    },
}
TEMPERATURES = (0.0, 0.9)


def params_of(name: str, temperature: float, **changes: Any) -> SamplingParams:
    return SamplingParams(
        **{"temperature": temperature, "seed": 5, "max_tokens": 30, "ignore_eos": True, **OPTIONS[name], **changes}
    )


def mixed(temperature: float) -> list[SamplingParams]:
    """One set of options for each prompt."""
    return [params_of(name, temperature) for name in ("all", "penalties", "rewards", "tokens")]


def tokens(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    assert [output.outputs[0].error for output in outputs] == [None] * len(outputs)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(scope="session")
def test_registry() -> Registry:
    """The installed plugins and those of the tests."""
    modules = ("tests.e2e.preempting_scheduler", "tests.e2e.option_plugins")
    own = [EntryPoint(module.rpartition(".")[2], module, "tokenloom") for module in modules]
    return Registry.discover([*entry_points(group="tokenloom"), *own])


@pytest.fixture(scope="module")
def alone(tiny_folder: Path, test_registry: Registry) -> Iterator[Callable[[Sequence[SamplingParams]], Any]]:
    """Runs the prompts one after another in an engine of their own, without cache and drafts; remembers outcomes."""
    composed = compose_config([f"model={tiny_folder}", *TINY_OVERRIDES, "cache=none"], registry=test_registry)
    known: dict[str, RequestOutput] = {}
    with LLM(config=composed, registry=test_registry, show_progress=False) as llm:

        def run(params: Sequence[SamplingParams]) -> list[RequestOutput]:
            found = []
            for prompt, each in zip(PROMPTS, params, strict=False):
                key = f"{prompt} {each}"
                if key not in known:
                    known[key] = llm.generate([prompt], each)[0]
                found.append(known[key])
            return found

        yield run


@pytest.fixture
def build_scripted(build_llm: Callable[..., LLM], tiny_folder: Path, test_registry: Registry) -> Callable[..., LLM]:
    """An engine whose drafter knows the given outputs: as chains or trees, all right but for some tokens."""

    def build(outputs: Sequence[RequestOutput], *, is_tree: bool, verifier: Verifier = "position_noise") -> LLM:
        policy = PluginChoice("spec_decode.policy", "fixed", FixedPolicyConfig(num_draft_tokens=5))
        scripts = tuple((*output.prompt_token_ids, *output.outputs[0].token_ids) for output in outputs)
        drafter = ScriptedConfig(scripts=scripts, is_tree=is_tree, policy=policy, verifier=verifier)
        composed = compose_config([f"model={tiny_folder}", *TINY_OVERRIDES], registry=test_registry)
        chosen = {"spec_decode": PluginChoice("spec_decode", "scripted", drafter)}
        engine = composed.engine.model_copy(update=chosen)
        config = type(composed)(engine, composed.extras, composed.sources, composed.choices)
        return LLM(config=config, registry=test_registry, show_progress=False)

    return build


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in ("ngrams",)])
def test_greedy_tokens_equal_the_plain_model_with_plain_options(
    tiny_folder: Path, alone: Callable[..., list[RequestOutput]], name: str
) -> None:
    """Transformers computes the logits, plain Python all that the options change."""
    plain, params = load_plain_model(tiny_folder), params_of(name, 0.0, logits_processors=None)
    for output in alone([params] * len(PROMPTS)):
        prompt, ids = tuple(output.prompt_token_ids), tuple(output.outputs[0].token_ids)
        words = (b"ab", b" ab", b"c", b" c", b"de f", b" de f") if params.bad_words else ()
        with torch.inference_mode():
            logits = plain._logits([*prompt, *ids])[len(prompt) - 1 : -1]
        for position, token_id in enumerate(ids):
            row = OptionRow(
                params, prompt, ids[:position], tuple(params.stop_token_ids), tuple(tuple(word) for word in words)
            )
            processed = torch.tensor(plain_processed(logits[position].tolist(), row))
            best = processed.topk(2)
            if token_id != int(best.indices[0]):
                assert float(best.values[0] - best.values[1]) < 1e-3, f"position {position} of {prompt}"
                break


@pytest.mark.parametrize("name", OPTIONS)
def test_options_change_the_output(alone: Callable[..., list[RequestOutput]], name: str) -> None:
    plain = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    assert tokens(alone([params_of(name, 0.0)] * 4)) != tokens(alone([plain] * 4))


def test_minimum_and_stop_tokens_meet(alone: Callable[..., list[RequestOutput]]) -> None:
    outputs = alone([params_of("all", 0.0, bad_words=(), logits_processors=None)] * 4)
    stops = set(range(40, 60))
    for output in outputs:
        ids = output.outputs[0].token_ids
        assert not stops & set(ids[:12])
        assert not stops & set(ids[:-1])
    assert any(output.outputs[0].finish_reason == "stop" for output in outputs)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_batch_gives_what_each_request_gives_alone(
    build_llm: Callable[..., LLM], alone: Callable[..., list[RequestOutput]], temperature: float
) -> None:
    params = mixed(temperature)
    assert tokens(build_llm().generate(PROMPTS, params)) == tokens(alone(params))


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_chunked_prompts_change_nothing(
    build_llm: Callable[..., LLM], alone: Callable[..., list[RequestOutput]], temperature: float
) -> None:
    params = mixed(temperature)
    llm = build_llm(max_num_batched_tokens=7, max_num_seqs=3)
    assert tokens(llm.generate(PROMPTS, params)) == tokens(alone(params))


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_preempted_requests_keep_their_counts(
    build_llm: Callable[..., LLM], alone: Callable[..., list[RequestOutput]], temperature: float
) -> None:
    params = mixed(temperature)
    scheduler = PluginChoice("scheduler", "preempting", PreemptingConfig(stride=2, max_num_seqs=4))
    llm = build_llm(scheduler=scheduler)
    assert tokens(llm.generate(PROMPTS, params)) == tokens(alone(params))
    assert llm.engine.stats.num_preemptions > 10


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_ngram_drafts_change_nothing(
    build_llm: Callable[..., LLM], alone: Callable[..., list[RequestOutput]], temperature: float
) -> None:
    params = [*mixed(temperature)[:3], params_of("ngrams", temperature)]
    llm = build_llm("spec_decode=ngram", "spec_decode.min_n=1")
    assert tokens(llm.generate(PROMPTS, params)) == tokens(alone(params))
    assert llm.engine.stats.num_draft_tokens > 0


@pytest.mark.parametrize("is_tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_accepted_and_rejected_drafts_change_nothing(
    build_scripted: Callable[..., LLM],
    alone: Callable[..., list[RequestOutput]],
    temperature: float,
    is_tree: bool,
) -> None:
    for params in (mixed(temperature), [params_of("all", temperature)] * 4, [params_of("ngrams", temperature)] * 4):
        expected = alone(params)
        with build_scripted(expected, is_tree=is_tree) as llm:
            found = llm.generate(PROMPTS, params)
            stats = llm.engine.stats
        assert tokens(found) == tokens(expected)
        assert 20 < stats.num_accepted_tokens < stats.num_draft_tokens
        for one, other in zip(found, expected, strict=True):
            assert_logprobs_equal(one.outputs[0].logprobs, other.outputs[0].logprobs)


def test_rejection_sampling_takes_the_options_along(
    build_scripted: Callable[..., LLM], alone: Callable[..., list[RequestOutput]]
) -> None:
    """Greedy requests give the same tokens, in a batch with others that rejection sampling judges."""
    params = [params_of(name, temperature) for name, temperature in zip(("all", "tokens") * 2, (0.0, 0.9, 0.9, 0.0))]
    expected = alone(params)
    with build_scripted(expected, is_tree=False, verifier="rejection") as llm:
        outputs = llm.generate(PROMPTS, params)
        assert llm.engine.stats.num_accepted_tokens > 10
    assert tokens(outputs)[0] == tokens(expected)[0]
    assert tokens(outputs)[3] == tokens(expected)[3]
    for output, each in zip(outputs, params, strict=True):
        assert each.allowed_token_ids is not None
        assert set(output.outputs[0].token_ids) <= set(each.allowed_token_ids)


def test_choices_have_noise_of_their_own_under_options(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm()
    params = params_of("all", 0.9, n=3)
    first, again = (llm.generate([PROMPTS[0]], params)[0].outputs for _ in range(2))
    assert [choice.token_ids for choice in first] == [choice.token_ids for choice in again]
    assert len({tuple(choice.token_ids) for choice in first}) == 3
    assert first[0].token_ids == llm.generate([PROMPTS[0]], params.with_changes(n=1))[0].outputs[0].token_ids


def test_bad_words_do_not_appear(build_llm: Callable[..., LLM]) -> None:
    """Only 'a', 'b', 'c' and space can be chosen."""
    params = SamplingParams(
        temperature=1.0, seed=1, max_tokens=200, allowed_token_ids=list(b"abc "), bad_words=["ab", "cca", "b c"]
    )
    llm = build_llm("spec_decode=ngram", "spec_decode.min_n=1")
    text = llm.generate("abcabc", params)[0].outputs[0].text
    assert len(text) == 200
    assert set(text) == set("abc ")
    assert not [word for word in params.bad_words if word in text]


# ---- logprobs of the prompt ----


def assert_logprobs_equal(found: Any, expected: Any) -> None:
    assert (found is None) == (expected is None)
    for one, other in zip(found or [], expected or [], strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.token_id == other.token_id
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert [value for _, value in one.top] == pytest.approx([value for _, value in other.top], abs=1e-4)


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_prompt_logprobs_are_the_plain_models(
    build_llm: Callable[..., LLM], tiny_folder: Path, prompt: list[int]
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=3)
    output = build_llm().generate([prompt], params)[0]
    found = output.prompt_logprobs
    assert found is not None
    assert len(output.outputs[0].token_ids) == 1
    assert len(found) == len(prompt)
    assert found[0] is None
    with torch.inference_mode():
        expected = load_plain_model(tiny_folder)._logits(prompt).log_softmax(dim=-1)
    for position, entry in enumerate(found[1:]):
        assert entry is not None
        assert entry.token_id == prompt[position + 1]
        assert entry.logprob == pytest.approx(float(expected[position, entry.token_id]), abs=1e-4)
        assert [value for _, value in entry.top] == pytest.approx(expected[position].topk(3).values.tolist(), abs=1e-4)


def test_prompt_logprobs_are_off_by_default_and_none_for_a_first_token(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm()
    assert llm.generate([[5]], SamplingParams(max_tokens=2))[0].prompt_logprobs is None
    assert llm.generate([[5]], SamplingParams(max_tokens=2, prompt_logprobs=1))[0].prompt_logprobs == [None]


@pytest.mark.parametrize("count", [0, 2])
def test_prompt_logprobs_do_not_depend_on_chunks_company_preemption_or_drafts(
    build_llm: Callable[..., LLM], alone: Callable[..., list[RequestOutput]], count: int
) -> None:
    params = [SamplingParams(temperature=0.0, max_tokens=9, prompt_logprobs=count, ignore_eos=True)] * 4
    expected = alone(params)
    scheduler = PluginChoice("scheduler", "preempting", PreemptingConfig(stride=2, max_chunk_tokens=3, max_num_seqs=4))
    engines = [
        build_llm(),
        build_llm(max_num_batched_tokens=5, max_num_seqs=4),
        build_llm(scheduler=scheduler),
        build_llm("spec_decode=ngram"),
    ]
    for llm in engines:
        for one, other in zip(llm.generate(PROMPTS, params), expected, strict=True):
            assert_logprobs_equal(one.prompt_logprobs, other.prompt_logprobs)
    assert engines[2].engine.stats.num_preemptions > 4


def test_prompt_logprobs_survive_preemption_in_the_middle_of_the_prompt(build_llm: Callable[..., LLM]) -> None:
    """The first request grows until blocks run out, while the second is still at its prompt."""
    llm = build_llm("cache=none", "cache.num_blocks=9", "cache.block_size=4", max_num_batched_tokens=3)
    long = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    wanted = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=2)
    prompt = [*range(50, 76)]
    _, output = llm.generate([[1, 2, 3, 4], prompt], [long, wanted])
    assert llm.engine.stats.num_preemptions > 0
    assert_logprobs_equal(output.prompt_logprobs, build_llm().generate([prompt], wanted)[0].prompt_logprobs)


def test_prompt_logprobs_pass_the_prefix_cache_by(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm()
    plain = SamplingParams(temperature=0.0, max_tokens=3)
    wanted = plain.with_changes(prompt_logprobs=1)
    first = llm.generate([PROMPTS[2]], wanted)[0]
    again = llm.generate([PROMPTS[2]], wanted)[0]
    assert (first.num_cached_tokens, again.num_cached_tokens) == (0, 0)
    assert_logprobs_equal(again.prompt_logprobs, first.prompt_logprobs)
    assert llm.generate([PROMPTS[2]], plain)[0].num_cached_tokens > 0


def test_prompt_logprobs_are_computed_once_for_all_choices(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm()
    params = SamplingParams(seed=3, max_tokens=3, prompt_logprobs=2)
    one, three = (llm.generate([PROMPTS[1]], params.with_changes(n=n))[0] for n in (1, 3))
    assert_logprobs_equal(three.prompt_logprobs, one.prompt_logprobs)
    stream = llm.stream(PROMPTS[1], params)
    assert stream.prompt_logprobs is None
    next(stream)
    assert_logprobs_equal(stream.prompt_logprobs, one.prompt_logprobs)
    stream.close()


# ---- one request's failure is its own ----


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", "plugin logits_processor=faulty failed at output position 3: ValueError: on purpose"),
        ("nan", "plugin logits_processor=faulty wrote NaN or +inf at output position 3"),
        ("forbid", "no token can be sampled at output position 3: every token is forbidden by logits_processor=faulty"),
    ],
)
@pytest.mark.parametrize("is_tree", [None, False, True], ids=["plain", "chain", "tree"])
def test_faulty_processor_fails_its_request_alone(
    build_llm: Callable[..., LLM],
    build_scripted: Callable[..., LLM],
    alone: Callable[..., list[RequestOutput]],
    fault: str,
    message: str,
    is_tree: bool | None,
) -> None:
    fine = [params_of("all", 0.0)] * 4
    expected = alone(fine)
    broken = fine[0].with_changes(logits_processors={"faulty": {"fault": fault, "at": 3}})
    llm = build_llm() if is_tree is None else build_scripted(expected, is_tree=is_tree)
    first, *others = llm.generate(PROMPTS, [broken, *fine[1:]])
    assert (first.outputs[0].finish_reason, first.outputs[0].error) == ("error", message)
    # What a step with drafts had in front of the fault is lost with it; nothing behind it was emitted.
    ids = first.outputs[0].token_ids
    assert len(ids) == 3 if is_tree is None else len(ids) <= 3
    assert tokens(others) == tokens(expected[1:])
    assert tokens(llm.generate(PROMPTS, fine)) == tokens(expected)
    llm.close()


def test_fault_behind_a_rejected_draft_does_no_harm(
    build_scripted: Callable[..., LLM], alone: Callable[..., list[RequestOutput]]
) -> None:
    """The request stops before the position at which its processor would fail, which only drafts reach."""
    params = [params_of("penalties", 0.0, max_tokens=4)] * 4
    longer = [each.with_changes(max_tokens=30) for each in params]
    faulty = [each.with_changes(logits_processors={"faulty": {"fault": "raise", "at": 5}}) for each in params]
    with build_scripted(alone(longer), is_tree=False) as llm:
        assert tokens(llm.generate(PROMPTS, faulty)) == tokens(alone(params))


def test_dead_end_ends_with_its_reason(
    build_llm: Callable[..., LLM], alone: Callable[..., list[RequestOutput]]
) -> None:
    stuck = SamplingParams(temperature=0.0, allowed_token_ids=[65], bad_words=["AAA"], max_tokens=9)
    plain = params_of("penalties", 0.0)
    first, second = build_llm().generate([[1, 2], PROMPTS[1]], [stuck, plain])
    assert first.outputs[0].token_ids == [65, 65]
    assert first.outputs[0].error == (
        "no token can be sampled at output position 2: every token is forbidden by allowed_token_ids and bad_words or "
        "min_tokens"
    )
    assert second.outputs[0].token_ids == alone([plain, plain])[1].outputs[0].token_ids


@pytest.mark.parametrize("verifier", ["position_noise", "rejection"])
def test_dead_end_behind_accepted_drafts_changes_nothing(build_llm: Callable[..., LLM], verifier: str) -> None:
    """The token after some accepted drafts cannot be sampled: a stop before it wins, and no token before it is lost."""
    prompt = [65, 65, 65, 66] * 6
    forced = SamplingParams(
        temperature=0.0,
        max_tokens=20,
        allowed_token_ids=[65, 66],
        logit_bias={65: 100},
        bad_words=["AAAA", "BA", "BB"],
    )
    cases = [
        forced.with_changes(stop_token_ids=[66]),
        forced.with_changes(stop=["B"]),
        forced,
        SamplingParams(temperature=0.0, max_tokens=20, allowed_token_ids=[65], bad_words=["A" * 9]),
    ]
    prompts = [prompt, prompt, prompt, [65] * 30]
    with build_llm() as llm:
        expected = [output.outputs[0] for output in llm.generate(prompts, cases)]
    assert [choice.finish_reason for choice in expected] == ["stop", "stop", "error", "error"]
    with build_llm("spec_decode=ngram", "spec_decode.min_n=1", f"spec_decode.verifier={verifier}") as llm:
        found = [output.outputs[0] for output in llm.generate(prompts, cases)]
        assert llm.engine.stats.num_accepted_tokens > 0
    for one, other in zip(found, expected, strict=True):
        assert (one.token_ids, one.text, one.finish_reason) == (other.token_ids, other.text, other.finish_reason)
        assert (one.stop_reason, one.error) == (other.stop_reason, other.error)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"allowed_token_ids": [320]}, "allowed_token_ids"),
        ({"logit_bias": {320: 1}}, "logit_bias"),
        ({"stop_token_ids": [320]}, "stop_token_ids"),
        ({"allowed_token_ids": [65], "bad_words": ["A"]}, "bad_words"),
        ({"allowed_token_ids": [1, 2], "stop_token_ids": [1, 2], "min_tokens": 1}, "min_tokens"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"logits_processors": {"no_repeat_ngrams": {"size": 3}}}, "logits_processors"),
    ],
)
def test_what_can_never_run_is_refused_and_nothing_started(
    build_llm: Callable[..., LLM], changes: dict[str, Any], param: str
) -> None:
    llm = build_llm()
    with pytest.raises(RequestError) as refusal:
        llm.generate(["a", "b"], [SamplingParams(), SamplingParams(**changes)])
    assert refusal.value.param == param
    assert not llm.engine.has_work()
