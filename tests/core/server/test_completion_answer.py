"""Completions as events and as one object, from the same news."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.core.server.news import delta
from tests.core.server.served_app import chunks_of
from tokenloom.batch import TokenLogprobs
from tokenloom.request import FinishReason
from tokenloom.server.answer_parts import DONE, AnswerHead, usage_of
from tokenloom.server.api_errors import ApiError
from tokenloom.server.completion_answer import CompletionAnswer, CompletionOptions, EchoedPrompt
from tokenloom.server.logprob_shapes import LogprobWriter
from tokenloom.text.output_processor import ChoiceDelta
from tokenloom.text.tokenizer import Tokenizer

HEAD = AnswerHead("cmpl-1", 5, "tiny")
USAGE = usage_of(2, 3, 1)
News = list[tuple[int, ChoiceDelta]]


def answer(tokenizer: Tokenizer, options: CompletionOptions, prompts: tuple[str, ...] = ("ab",)) -> CompletionAnswer:
    echoed = [EchoedPrompt(prompt, list(prompt.encode())) for prompt in prompts]
    return CompletionAnswer(HEAD, options, echoed, LogprobWriter(tokenizer, skip_special_tokens=True))


def streamed(writer: CompletionAnswer, news: News) -> list[dict[str, Any]]:
    body = writer.begin() + b"".join(writer.events(index, item, USAGE) for index, item in news)
    return list(chunks_of(body + writer.usage_event(USAGE) + DONE))


def whole(writer: CompletionAnswer, news: News) -> dict[str, Any]:
    for index, item in news:
        writer.collect(index, item)
    found: dict[str, Any] = json.loads(writer.whole(USAGE))
    return found


def prompt_entries(text: str) -> tuple[TokenLogprobs | None, ...]:
    return (None, *(TokenLogprobs(byte, -2.0, ((byte, -2.0),)) for byte in text.encode()[1:]))


HELLO: News = [(0, delta("he")), (0, delta("", [7])), (0, delta("y", None, FinishReason.STOP, "z"))]


def test_stream_shows_text_and_ends_with_the_reason(byte_tokenizer: Tokenizer) -> None:
    chunks = streamed(answer(byte_tokenizer, CompletionOptions()), HELLO)
    base = {"id": "cmpl-1", "object": "text_completion", "created": 5, "model": "tiny"}
    choice = {"index": 0, "logprobs": None}
    assert chunks == [
        {**base, "choices": [{**choice, "text": "he", "finish_reason": None, "stop_reason": None}]},
        {**base, "choices": [{**choice, "text": "y", "finish_reason": "stop", "stop_reason": "z"}]},
    ]


def test_whole_joins_what_is_streamed(byte_tokenizer: Tokenizer) -> None:
    options = CompletionOptions(n=2, echo=True, num_logprobs=1, token_ids=True)
    news: News = [
        (1, delta("x")),  # has to wait for the prompt's logprobs, which come with the first choice
        (0, delta("é"[:0], [0xC3], prompt_logprobs=prompt_entries("ab"))),
        (0, delta("é", [0xA9], FinishReason.LENGTH)),
        (1, delta("", [], FinishReason.STOP, 3)),
    ]
    found = whole(answer(byte_tokenizer, options), news)
    chunks = streamed(answer(byte_tokenizer, options), news)
    for choice in found["choices"]:
        own = [part["choices"][0] for part in chunks if part["choices"][0]["index"] == choice["index"]]
        assert choice["text"] == "".join(part["text"] for part in own)
        parts = [part["logprobs"] for part in own if part["logprobs"]]
        assert choice["logprobs"] == {key: [v for part in parts for v in part[key]] for key in choice["logprobs"]}
        assert choice["token_ids"] == [i for part in own for i in part.get("token_ids", [])]
        assert choice["finish_reason"] == own[-1]["finish_reason"]
    first, second = found["choices"]
    assert first["text"] == "abé"
    assert first["logprobs"] == {
        "tokens": ["a", "b", "bytes:\\xc3", "bytes:\\xa9"],
        "token_logprobs": [None, -2.0, -1.0, -1.0],
        "top_logprobs": [None, {"b": -2.0}, {"bytes:\\xc3": -1.0}, {"bytes:\\xa9": -1.0}],
        "text_offset": [0, 1, 2, 3],
        "bytes": [[97], [98], [0xC3], [0xA9]],
    }
    assert second["text"] == "abx"
    assert second["stop_reason"] == 3
    assert first["prompt_token_ids"] == [97, 98]


def test_echo_and_logprobs_of_several_prompts_stay_apart(byte_tokenizer: Tokenizer) -> None:
    options = CompletionOptions(n=1, echo=True, num_logprobs=0)
    news: News = [
        (1, delta("2", None, FinishReason.LENGTH, prompt_logprobs=prompt_entries("cd"))),
        (0, delta("1", None, FinishReason.LENGTH, prompt_logprobs=prompt_entries("ab"))),
    ]
    choices = whole(answer(byte_tokenizer, options, ("ab", "cd")), news)["choices"]
    assert [choice["text"] for choice in choices] == ["ab1", "cd2"]
    assert [choice["logprobs"]["tokens"] for choice in choices] == [["a", "b", "1"], ["c", "d", "2"]]
    assert choices[0]["logprobs"]["top_logprobs"] is None


def test_usage_is_a_chunk_of_its_own_and_only_where_asked_for(byte_tokenizer: Tokenizer) -> None:
    chunks = streamed(answer(byte_tokenizer, CompletionOptions(usage_chunk=True)), HELLO)
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None, None]
    assert chunks[-1]["choices"] == []
    usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert chunks[-1]["usage"] == {**usage, "prompt_tokens_details": {"cached_tokens": 1}}
    assert all("usage" not in chunk for chunk in streamed(answer(byte_tokenizer, CompletionOptions()), HELLO))
    always = CompletionOptions(usage_chunk=True, usage_always=True)
    assert all(chunk["usage"]["total_tokens"] == 5 for chunk in streamed(answer(byte_tokenizer, always), HELLO))


def test_prompt_logprobs_stand_beside_the_text(byte_tokenizer: Tokenizer) -> None:
    entries = (None, TokenLogprobs(98, -3.0, ((99, -0.5),)))
    news: News = [(0, delta("c", None, FinishReason.LENGTH, prompt_logprobs=entries))]
    (choice,) = whole(answer(byte_tokenizer, CompletionOptions(prompt_logprobs=True)), news)["choices"]
    assert choice["text"] == "c"
    assert choice["prompt_logprobs"] == [
        None,
        {
            "99": {"logprob": -0.5, "rank": 1, "decoded_token": "c"},
            "98": {"logprob": -3.0, "rank": None, "decoded_token": "b"},
        },
    ]


@pytest.mark.parametrize(
    ("reason", "error", "status", "code"),
    [
        (FinishReason.ERROR, "no token can be sampled: the model's logits are not finite", 500, "generation_failed"),
        (FinishReason.ERROR, "no token: every token is forbidden by bad_words", 400, "no_token_left"),
        (FinishReason.ABORT, None, 503, "server_stopping"),
    ],
)
def test_a_failed_choice_fails_the_answer(
    byte_tokenizer: Tokenizer, reason: FinishReason, error: str | None, status: int, code: str
) -> None:
    with pytest.raises(ApiError) as caught:
        answer(byte_tokenizer, CompletionOptions()).events(0, delta("", [], reason, error=error), USAGE)
    assert (caught.value.status, caught.value.code) == (status, code)
