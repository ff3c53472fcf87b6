"""Chat completions as events and as one object, from the same news."""

from __future__ import annotations

import json
from typing import Any

from tests.core.server.news import delta
from tests.core.server.served_app import chunks_of
from tokenloom.batch import TokenLogprobs
from tokenloom.request import FinishReason
from tokenloom.server.answer_parts import DONE, AnswerHead, usage_of
from tokenloom.server.chat_answer import ChatAnswer, ChatOptions
from tokenloom.server.logprob_shapes import LogprobWriter
from tokenloom.server.tools import ReplyParser, build_reasoning_parser, build_tool_parser
from tokenloom.text.output_processor import ChoiceDelta
from tokenloom.text.tokenizer import Tokenizer

HEAD = AnswerHead("chatcmpl-1", 5, "tiny")
USAGE = usage_of(2, 3, 0)
BASE = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 5, "model": "tiny"}
CALLS = (
    "<think>hm</think>Let me see."
    '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'
)
News = list[tuple[int, ChoiceDelta]]


def answer(
    tokenizer: Tokenizer, options: ChatOptions | None = None, parsers: list[ReplyParser | None] | None = None
) -> ChatAnswer:
    writer = LogprobWriter(tokenizer, skip_special_tokens=True)
    return ChatAnswer(HEAD, options or ChatOptions(), [1, 2], writer, parsers or [None])


def hermes() -> list[ReplyParser | None]:
    return [ReplyParser(build_reasoning_parser("qwen3", ""), build_tool_parser("hermes", ["add"]))]


def streamed(writer: ChatAnswer, news: News) -> list[dict[str, Any]]:
    body = writer.begin() + b"".join(writer.events(index, item, USAGE) for index, item in news)
    return list(chunks_of(body + writer.usage_event(USAGE) + DONE))


def whole(writer: ChatAnswer, news: News) -> dict[str, Any]:
    for index, item in news:
        writer.collect(index, item)
    found: dict[str, Any] = json.loads(writer.whole(USAGE))
    return found


def letter_by_letter(text: str) -> News:
    return [*((0, delta(letter)) for letter in text), (0, delta("", [9], FinishReason.STOP, 9))]


def test_stream_is_role_then_content_then_reason(byte_tokenizer: Tokenizer) -> None:
    news: News = [(0, delta("he")), (0, delta("y", None, FinishReason.LENGTH))]
    choice = {"index": 0, "logprobs": None, "finish_reason": None}
    assert streamed(answer(byte_tokenizer), news) == [
        {**BASE, "choices": [{**choice, "delta": {"role": "assistant", "content": ""}}]},
        {**BASE, "choices": [{**choice, "delta": {"content": "he"}}]},
        {**BASE, "choices": [{**choice, "delta": {"content": "y"}}]},
        {**BASE, "choices": [{**choice, "delta": {}, "finish_reason": "length", "stop_reason": None}]},
    ]


def test_choices_interleave_by_index_and_each_begins_with_its_role(byte_tokenizer: Tokenizer) -> None:
    news: News = [(1, delta("b")), (0, delta("a", None, FinishReason.STOP)), (1, delta("c", None, FinishReason.LENGTH))]
    chunks = streamed(answer(byte_tokenizer, parsers=[None, None]), news)
    assert [(c["choices"][0]["index"], c["choices"][0]["delta"].get("content")) for c in chunks] == [
        (0, ""),
        (1, ""),
        (1, "b"),
        (0, "a"),
        (0, None),
        (1, "c"),
        (1, None),
    ]
    choices = whole(answer(byte_tokenizer, parsers=[None, None]), news)["choices"]
    assert [choice["message"]["content"] for choice in choices] == ["a", "bc"]


def test_whole_has_message_usage_and_logprobs(byte_tokenizer: Tokenizer) -> None:
    news: News = [(0, delta("", [0xC3])), (0, delta("é", [0xA9], FinishReason.STOP, "x"))]
    found = whole(answer(byte_tokenizer, ChatOptions(logprobs=True, token_ids=True)), news)
    assert found["object"] == "chat.completion"
    assert found["usage"]["total_tokens"] == 5
    assert found["prompt_token_ids"] == [1, 2]
    (choice,) = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": "é", "refusal": None}
    assert (choice["finish_reason"], choice["stop_reason"], choice["token_ids"]) == ("stop", "x", [0xC3, 0xA9])
    half = {"token": "\\xc3", "logprob": -1.0, "bytes": [0xC3]}
    assert choice["logprobs"]["content"][0] == {**half, "top_logprobs": [half]}


def test_logprobs_come_with_tokens_that_show_no_text_yet(byte_tokenizer: Tokenizer) -> None:
    news: News = [(0, delta("", [0xC3])), (0, delta("é", [0xA9], FinishReason.STOP))]
    chunks = streamed(answer(byte_tokenizer, ChatOptions(logprobs=True)), news)
    shown = [chunk["choices"][0] for chunk in chunks[1:]]
    assert [part["delta"].get("content") for part in shown] == ["", "é", None]
    assert [part["logprobs"] and part["logprobs"]["content"][0]["bytes"] for part in shown] == [[0xC3], [0xA9], None]


def test_infinite_logprobs_are_written_as_numbers(byte_tokenizer: Tokenizer) -> None:
    entry = TokenLogprobs(97, float("-inf"), ((98, float("nan")),))
    news: News = [(0, delta("a", None, FinishReason.STOP, logprobs=(entry,)))]
    (choice,) = whole(answer(byte_tokenizer, ChatOptions(logprobs=True)), news)["choices"]
    assert choice["logprobs"]["content"][0]["logprob"] == -9999.0
    assert choice["logprobs"]["content"][0]["top_logprobs"][0]["logprob"] == -9999.0


def test_thoughts_and_calls_are_streamed_as_they_are_written(byte_tokenizer: Tokenizer) -> None:
    chunks = streamed(answer(byte_tokenizer, parsers=hermes()), letter_by_letter(CALLS))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(part.get("reasoning_content", "") for part in deltas) == "hm"
    assert "".join(part.get("content", "") for part in deltas) == "Let me see."
    calls = [part["tool_calls"][0] for part in deltas if "tool_calls" in part]
    for index, arguments in enumerate(('{"a": 1}', '{"a": 2}')):
        first, *others = [call for call in calls if call["index"] == index]
        assert (first["type"], first["function"]["name"]) == ("function", "add")
        assert first["id"].startswith("call_")
        assert all(set(call) == {"index", "function"} and set(call["function"]) == {"arguments"} for call in others)
        assert "".join(call["function"]["arguments"] for call in (first, *others)) == arguments
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_whole_with_calls_is_what_was_streamed(byte_tokenizer: Tokenizer) -> None:
    (choice,) = whole(answer(byte_tokenizer, parsers=hermes()), letter_by_letter(CALLS))["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "Let me see.")
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "add", "arguments": '{"a": 1}'},
        {"name": "add", "arguments": '{"a": 2}'},
    ]
    assert all(set(call) == {"id", "type", "function"} for call in message["tool_calls"])
    assert choice["finish_reason"] == "tool_calls"


def test_unwanted_thoughts_and_further_calls_are_left_out(byte_tokenizer: Tokenizer) -> None:
    options = ChatOptions(reasoning=False, parallel_tool_calls=False)
    (choice,) = whole(answer(byte_tokenizer, options, hermes()), letter_by_letter(CALLS))["choices"]
    assert "reasoning_content" not in choice["message"]
    assert len(choice["message"]["tool_calls"]) == 1


def test_a_reply_of_calls_alone_has_null_content(byte_tokenizer: Tokenizer) -> None:
    text = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
    (choice,) = whole(answer(byte_tokenizer, parsers=hermes()), letter_by_letter(text))["choices"]
    assert choice["message"]["content"] is None


def test_a_call_cut_by_the_length_keeps_that_reason(byte_tokenizer: Tokenizer) -> None:
    news: News = [(0, delta('<tool_call>\n{"name": "add", "arguments": {"a"', None, FinishReason.LENGTH))]
    (choice,) = whole(answer(byte_tokenizer, parsers=hermes()), news)["choices"]
    assert choice["finish_reason"] == "length"


def test_usage_of_a_stream_is_told_where_asked_for(byte_tokenizer: Tokenizer) -> None:
    chunks = streamed(answer(byte_tokenizer, ChatOptions(usage_chunk=True)), letter_by_letter("ab"))
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 4
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["total_tokens"]) == ([], 5)


def test_a_call_cut_by_a_stop_string_is_no_call_to_make(byte_tokenizer: Tokenizer) -> None:
    cut = CALLS[: CALLS.index("2}")]
    for text, stop, reason in ((cut, "2", "stop"), (CALLS, "!", "tool_calls"), (cut, None, "tool_calls")):
        news: News = [(0, delta(text)), (0, delta("", None, FinishReason.STOP, stop))]
        found = whole(answer(byte_tokenizer, parsers=hermes()), news)
        assert found["choices"][0]["finish_reason"] == reason, (text, stop)
