"""/v1/chat/completions, /tokenize and /detokenize on a tiny model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.server.served_app import Answer, ServedApp


def text_of(answer: Answer, index: int = 0) -> str:
    """A choice's text, whole or streamed."""
    assert answer.status == 200, answer.body
    if answer.headers["content-type"] == "application/json":
        text: str = answer.json["choices"][index]["message"]["content"]
        return text
    parts = [choice for chunk in answer.chunks for choice in chunk["choices"] if choice["index"] == index]
    assert parts[0]["delta"] == {"role": "assistant", "content": ""}
    assert [part["finish_reason"] is None for part in parts] == [True] * (len(parts) - 1) + [False]
    return "".join(part["delta"].get("content", "") for part in parts)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 3, "temperature": 1, "seed": 5, "logprobs": True, "top_logprobs": 3},
        {"stop": "O"},
        {"max_tokens": 1, "return_token_ids": True},
        {"max_tokens": None, "max_completion_tokens": 5},
    ],
    ids=str,
)
def test_stream_and_whole_are_equal(api: ServedApp, fields: dict[str, Any]) -> None:
    whole, stream = api.chat(**fields), api.chat(**fields, stream=True)
    for choice in whole.json["choices"]:
        assert text_of(stream, choice["index"]) == choice["message"]["content"]
        parts = [p for chunk in stream.chunks for p in chunk["choices"] if p["index"] == choice["index"]]
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        if choice["logprobs"]:
            assert [e for p in parts if p["logprobs"] for e in p["logprobs"]["content"]] == choice["logprobs"][
                "content"
            ]


def test_chat_is_the_completion_of_the_rendered_conversation(api: ServedApp) -> None:
    tokens = api.post("/tokenize", {"messages": [{"role": "user", "content": "Hello"}]}).json["tokens"]
    assert bytes(tokens).decode() == "[user]Hello\n[assistant]"
    assert text_of(api.chat()) == api.complete(prompt=tokens).json["choices"][0]["text"]
    assert text_of(api.chat()) == api.complete(prompt=bytes(tokens).decode()).json["choices"][0]["text"]


def test_without_a_limit_a_reply_may_fill_the_context(api: ServedApp) -> None:
    answer = api.chat(max_tokens=None).json
    assert answer["usage"]["total_tokens"] == 256
    assert answer["choices"][0]["finish_reason"] == "length"


def test_logprobs_have_bytes_and_as_many_others_as_asked_for(api: ServedApp) -> None:
    answer = api.chat(logprobs=True, top_logprobs=2, return_token_ids=True).json["choices"][0]
    content = answer["logprobs"]["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]) == bytes(
        i for i in answer["token_ids"] if i < 256
    )
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    assert all(entry["top_logprobs"][0]["logprob"] == entry["logprob"] for entry in content)  # greedy
    none = api.chat(logprobs=True).json["choices"][0]["logprobs"]["content"]
    assert all(entry["top_logprobs"] == [] for entry in none)
    assert api.chat().json["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, None),
        ({"messages": [{"role": "assistant", "tool_calls": [3]}]}, "messages[0].tool_calls[0]"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"chat_template_kwargs": {"messages": []}}, "messages"),
    ],
    ids=str,
)
def test_what_cannot_be_answered_is_refused_by_name(api: ServedApp, fields: dict[str, Any], param: str | None) -> None:
    answer = api.chat(**fields)
    assert answer.status == 400, answer.body
    assert param is None or answer.error["param"] == param


def test_template_variables_may_have_any_name(api: ServedApp) -> None:
    names = ("self", "tokenizer", "variables", "max_chars", "num_body_bytes", "enable_thinking", "", "a b", "loop")
    assert api.chat(chat_template_kwargs=dict.fromkeys(names, 1), max_tokens=1).status == 200


def test_tokenize_and_detokenize_are_inverse(api: ServedApp) -> None:
    found = api.post("/tokenize", {"prompt": "héllo", "return_token_strs": True}).json
    assert found["tokens"] == list("héllo".encode())
    assert found["count"] == 6 == len(found["token_strs"])
    assert found["max_model_len"] == 256
    assert api.post("/detokenize", {"tokens": found["tokens"]}).json == {"prompt": "héllo"}
    wrong: tuple[Any, ...] = ([320], [-1], [2**70], ["a"], [True], None, "abc")
    for tokens in wrong:
        assert api.post("/detokenize", {"tokens": tokens}).status == 400
    both = {"prompt": "x", "messages": [{"role": "user", "content": "y"}]}
    bodies: tuple[dict[str, Any], ...] = ({}, both, {"prompt": 3}, {"prompt": "x" * 40_000})
    for body in bodies:
        assert api.post("/tokenize", body).status == 400
