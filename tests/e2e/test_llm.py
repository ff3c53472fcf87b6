"""`LLM` as its users meet it, on the tiny model."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import pytest
import torch

from tokenloom import LLM, SamplingParams
from tokenloom.errors import ConfigError, OutOfMemoryError, RequestError
from tokenloom.interfaces.logits import LogitsConstraint
from tokenloom.request_factory import RequestTraits

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)


def test_generate_takes_text_and_token_ids(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm()
    text, ids = llm.generate(["hello", list(b"hello")], GREEDY)
    assert text.prompt == "hello"
    assert ids.prompt is None
    assert text.prompt_token_ids == ids.prompt_token_ids == list(b"hello")
    assert text.outputs[0].token_ids == ids.outputs[0].token_ids
    assert len(text.outputs[0].token_ids) == 20
    assert text.outputs[0].finish_reason == "length"
    assert text.outputs[0].text == llm.tokenizer.decode(text.outputs[0].token_ids)


def test_params_for_each_prompt(build_llm: Callable[..., LLM]) -> None:
    outputs = build_llm().generate(["a", "b"], [GREEDY.with_changes(max_tokens=n) for n in (3, 5)])
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 5]


def test_wrong_number_of_params_is_refused(build_llm: Callable[..., LLM]) -> None:
    with pytest.raises(RequestError, match="1 entries for 2 prompts"):
        build_llm().generate(["a", "b"], [GREEDY])


def test_stream_joins_to_the_whole_text(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm()
    whole = llm.generate("stream me", GREEDY)[0].outputs[0]
    stream = llm.stream("stream me", GREEDY)
    deltas = list(stream)
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [i for delta in deltas for i in delta.token_ids] == whole.token_ids
    assert deltas[-1].finish_reason == "length"
    assert all(delta.finish_reason is None for delta in deltas[:-1])
    assert stream.num_tokens == 20
    assert stream.metrics is not None


def test_closed_stream_frees_its_memory(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm("cache=none")
    stream = llm.stream("abc", GREEDY)
    next(stream)
    assert llm.engine.kv_usage()["active"] > 0
    stream.close()
    assert llm.engine.kv_usage()["active"] == 0
    assert list(stream) == []


def test_streams_and_batches_interleave(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm()
    expected = [llm.generate(p, GREEDY)[0].outputs[0].text for p in ("one", "two", "three")]
    first, second = llm.stream("one", GREEDY), llm.stream("two", GREEDY)
    pieces = [next(first).text, next(second).text]
    assert llm.generate("three", GREEDY)[0].outputs[0].text == expected[2]
    assert pieces[0] + "".join(d.text for d in first) == expected[0]
    assert pieces[1] + "".join(d.text for d in second) == expected[1]


def test_chat_uses_the_template(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm()
    conversation = [{"role": "user", "content": "hi"}]
    output = llm.chat(conversation, GREEDY)[0]
    assert bytes(output.prompt_token_ids) == b"[user]hi\n[assistant]"
    assert llm.chat([conversation, conversation], GREEDY)[1].outputs[0].token_ids == output.outputs[0].token_ids
    streamed = "".join(delta.text for delta in llm.stream(conversation, GREEDY))
    assert streamed == output.outputs[0].text


@pytest.mark.parametrize("spec_decode", ["none", "ngram"])
@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_cut_text_and_ids(build_llm: Callable[..., LLM], spec_decode: str, include: bool) -> None:
    llm = build_llm(spec_decode=spec_decode)
    whole = llm.generate([5, 6, 7] * 4, GREEDY.with_changes(max_tokens=40))[0].outputs[0]
    for start in range(0, 30, 3):
        stop = whole.text[start : start + 2]
        end = whole.text.index(stop) + (len(stop) if include else 0)
        params = GREEDY.with_changes(max_tokens=40, stop=[stop], include_stop_str_in_output=include)
        found = llm.generate([5, 6, 7] * 4, params)[0].outputs[0]
        assert found.text == whole.text[:end]
        assert found.finish_reason == "stop"
        assert found.stop_reason == stop
        assert found.token_ids == whole.token_ids[: len(found.token_ids)]
        streamed = "".join(delta.text for delta in llm.stream([5, 6, 7] * 4, params))
        assert streamed == found.text
    assert llm.engine.kv_usage()["active"] == 0


@pytest.mark.parametrize("spec_decode", ["none", "ngram"])
def test_stop_token_ends_at_its_first_occurrence(build_llm: Callable[..., LLM], spec_decode: str) -> None:
    llm = build_llm(spec_decode=spec_decode)
    whole = llm.generate([5, 6, 7] * 4, GREEDY)[0].outputs[0]
    for token_id in dict.fromkeys(whole.token_ids):
        first = whole.token_ids.index(token_id)
        for max_tokens in (first, first + 1, first + 2):
            if max_tokens < 1:
                continue
            params = GREEDY.with_changes(stop_token_ids=[token_id], max_tokens=max_tokens)
            found = llm.generate([5, 6, 7] * 4, params)[0].outputs[0]
            expected = ("stop", token_id, first + 1) if max_tokens > first else ("length", None, max_tokens)
            assert (found.finish_reason, found.stop_reason, len(found.token_ids)) == expected
            if found.finish_reason == "stop":
                assert found.text == llm.tokenizer.decode(whole.token_ids[:first])


def test_stop_string_that_half_a_character_completes_at_the_end(build_llm: Callable[..., LLM]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=1, allowed_token_ids=[0xE2], stop="\ufffd")
    (choice,) = build_llm().generate("hello", params)[0].outputs
    assert (choice.text, choice.finish_reason, choice.stop_reason) == ("", "stop", "\ufffd")


def test_min_tokens_masks_stop_tokens(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm()
    first = llm.generate("xyz", GREEDY)[0].outputs[0].token_ids[0]
    params = GREEDY.with_changes(stop_token_ids=[first], min_tokens=6)
    output = llm.generate("xyz", params)[0].outputs[0]
    assert first not in output.token_ids[:6]


def test_logprobs_come_with_every_token(build_llm: Callable[..., LLM]) -> None:
    output = build_llm("spec_decode=ngram").generate([5, 6, 7] * 4, GREEDY.with_changes(logprobs=3))[0].outputs[0]
    assert output.logprobs is not None
    assert [entry.token_id for entry in output.logprobs] == output.token_ids
    for entry in output.logprobs:
        assert len(entry.top) == 3
        assert entry.top[0] == (entry.token_id, entry.logprob)
        assert entry.logprob <= 0.0


def test_prefix_cache_hits_are_reported_and_change_nothing(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm("cache.block_size=4")
    prompt = list(range(1, 30))
    first, second = llm.generate([prompt], GREEDY)[0], llm.generate([prompt], GREEDY)[0]
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 28)
    assert first.outputs[0].token_ids == second.outputs[0].token_ids
    other = llm.generate([prompt], GREEDY, traits=RequestTraits(cache_salt="tenant"))[0]
    assert other.num_cached_tokens == 0
    assert other.outputs[0].token_ids == first.outputs[0].token_ids
    assert llm.engine.reset_prefix_cache() > 0
    assert llm.generate([prompt], GREEDY)[0].num_cached_tokens == 0


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "no tokens"),
        ([1, 320], "token id 320 is not in the model's vocabulary 0..319"),
        ([-1], "token id -1"),
        ([1] * 512, "max_model_len=512"),
        ([True, False], "string or a list of token ids"),
        ("", "no tokens"),
    ],
)
def test_impossible_prompts_are_refused(build_llm: Callable[..., LLM], prompt: list[int], message: str) -> None:
    llm = build_llm()
    with pytest.raises(RequestError, match=message):
        llm.generate([[1, 2], prompt], GREEDY)
    assert not llm.engine.has_work()
    assert llm.generate([1, 2], GREEDY)[0].outputs[0].finish_reason == "length"


def test_prompt_larger_than_the_kv_cache_is_refused(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm("cache.num_blocks=5", "cache.block_size=4")
    with pytest.raises(RequestError, match="the whole KV cache holds 16"):
        llm.generate([[1] * 17], GREEDY)
    output = llm.generate([[1] * 16, [2] * 3], GREEDY.with_changes(max_tokens=None))
    assert [choice.outputs[0].finish_reason for choice in output] == ["length", "length"]
    assert [len(choice.outputs[0].token_ids) for choice in output] == [1, 14]


def test_constraint_masks_every_position(build_llm: Callable[..., LLM]) -> None:
    for spec_decode in ("none", "ngram"):
        llm = build_llm(spec_decode=spec_decode)
        output = llm.generate([4, 6, 8] * 4, GREEDY, traits=RequestTraits(constraint=_EvenTokens()))[0]
        assert len(output.outputs[0].token_ids) == 20
        assert all(token_id % 2 == 0 for token_id in output.outputs[0].token_ids)


def test_constraint_that_allows_nothing_fails_its_request_only(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm()
    nothing = RequestTraits(constraint=_NoTokens())
    outputs = llm.generate(["a", "b"], GREEDY, traits=[nothing, RequestTraits()])
    assert outputs[0].outputs[0].finish_reason == "error"
    assert str(outputs[0].outputs[0].error).endswith("every token is forbidden by the logits constraint")
    assert outputs[1].outputs[0].finish_reason == "length"
    assert llm.engine.kv_usage()["active"] == 0


def test_keywords_and_overrides_agree_or_are_refused(build_llm: Callable[..., LLM]) -> None:
    llm = build_llm(max_num_seqs=3, block_size=8)
    assert llm.config.to_dict()["scheduler"]["max_num_seqs"] == 3
    assert llm.config.to_dict()["cache"]["block_size"] == 8
    with pytest.raises(ConfigError, match="max_num_seqs"):
        build_llm("scheduler.max_num_seqs=4", max_num_seqs=3)


def test_kv_cache_that_cannot_fit_shows_the_breakdown(build_llm: Callable[..., LLM]) -> None:
    with pytest.raises(OutOfMemoryError, match=r"(?s)weights.*kv_cache.*activation_peak.*lower cache.num_blocks"):
        build_llm("cache.num_blocks=1000000000")


def test_metrics_are_consistent(build_llm: Callable[..., LLM]) -> None:
    metrics = build_llm().generate("abc", GREEDY)[0].outputs[0].metrics
    assert metrics.ttft_s is not None
    assert metrics.e2e_s is not None
    assert metrics.tpot_s == pytest.approx((metrics.e2e_s - metrics.ttft_s) / 19)
    assert sum(metrics.tokens_per_chunk) == 20
    assert list(metrics.token_times_s) == sorted(metrics.token_times_s)


class _Stateless(LogitsConstraint):
    """Allows the same tokens everywhere."""

    def advance(self, token_id: int) -> bool:
        mask = torch.empty(token_id + 1, dtype=torch.bool)
        self.allowed_mask(mask)
        return bool(mask[token_id])

    def rollback(self, num_tokens: int) -> None:
        assert num_tokens >= 0

    @property
    def is_terminated(self) -> bool:
        return False


@final
class _EvenTokens(_Stateless):
    def fork(self) -> LogitsConstraint:
        return _EvenTokens()

    def allowed_mask(self, out: torch.Tensor) -> None:
        out.copy_(torch.arange(len(out)) % 2 == 0)


@final
class _NoTokens(_Stateless):
    def fork(self) -> LogitsConstraint:
        return _NoTokens()

    def allowed_mask(self, out: torch.Tensor) -> None:
        out.fill_(False)
