"""Bodies: JSON and nothing else, objects and nothing else, types as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tokenloom.server.api_errors import ApiError
from tokenloom.server.chat_body import ChatBody
from tokenloom.server.completion_body import MAX_PROMPTS, CompletionBody
from tokenloom.server.request_body import parse_object, validate_body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"null",
        b'"text"',
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": 1' + b"0" * 5000 + b"}",
        b'{"a": "\\ud800"}',
        b'{"a": "\xff"}',
        b"\xff\xfe{\x00}\x00",
        b'{"a": ' + b"[" * 100_000,
        b"{'a': 1}",
        b'{"a": 1} {"b": 2}',
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


@pytest.mark.parametrize("value", ["1", True, [1], {}, 10**400], ids=str)
def test_values_of_other_types_are_refused_by_name(value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        validate_body(CompletionBody, {"prompt": "x", "temperature": value})
    assert (caught.value.status, caught.value.param) == (400, "temperature")
    assert caught.value.message.startswith("temperature")


def test_null_is_the_default_of_every_optional_field() -> None:
    optional = {name: None for name, field in CompletionBody.model_fields.items() if not field.is_required()}
    assert validate_body(CompletionBody, {"prompt": "x", **optional}) == CompletionBody(prompt="x")


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        ("", [""]),
        ([1, 2], [[1, 2]]),
        (["a", "b"], ["a", "b"]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_prompts_come_in_four_forms(prompt: Any, prompts: Any) -> None:
    assert validate_body(CompletionBody, {"prompt": prompt}).prompt == prompts


@pytest.mark.parametrize(
    "prompt", [None, 3, {}, [], ["a", 1], [1, "a"], [True], [1.5], [[1], "a"], [["a"]], ["a"] * (MAX_PROMPTS + 1)]
)
def test_other_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(ApiError) as caught:
        validate_body(CompletionBody, {"prompt": prompt})
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("stop", 3, "a string or a list of strings"),
        ("stop", ["a", 3], "a string or a list of strings"),
        ("guided_json", 3, "a JSON schema"),
        ("tool_choice", "maybe", '"none", "auto", "required"'),
        ("tool_choice", {"type": "function"}, '"none", "auto", "required"'),
        ("stream_options", 3, "an object"),
        ("n", 1.5, "integer"),
    ],
)
def test_a_field_of_several_forms_is_refused_with_one_message(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(ApiError) as caught:
        validate_body(ChatBody, {"messages": [{"role": "user", "content": "x"}], field: value})
    assert caught.value.param == field
    assert allowed in caught.value.message
    assert caught.value.message.count(f"{field}: ") == 1


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ApiError) as caught:
        validate_body(ChatBody, {"temperature": "hot", "n": 1.5})
    assert "messages is required" in caught.value.message
    assert 'temperature: must be a valid number, got "hot"' in caught.value.message
    assert "n: " in caught.value.message


def test_of_a_long_value_no_more_is_looked_at_than_is_shown() -> None:
    class Watched(list[int]):
        num_seen = 0

        def __iter__(self) -> Iterator[int]:
            for item in super().__iter__():
                self.num_seen += 1
                yield item

    value = Watched(range(100_000))
    with pytest.raises(ApiError, match=r"got \[0, 1, 2, .*\.\.\.$"):
        validate_body(CompletionBody, {"prompt": "x", "user": value})
    assert value.num_seen < 100


def test_long_values_are_not_repeated() -> None:
    with pytest.raises(ApiError) as caught:
        validate_body(CompletionBody, {"prompt": "x", "seed": "7" * 10**6})
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": "x", "cache_salt": ""}, 'cache_salt: must have at least 1 character, got ""'),
        ({"prompt": "x", "n": True}, "n: must be a valid integer, got true"),
        ({"prompt": "x", "allowed_token_ids": [None]}, "allowed_token_ids[0]: must be a valid integer, got null"),
    ],
)
def test_faults_are_told_in_words_of_json(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError) as caught:
        validate_body(CompletionBody, fields)
    assert caught.value.message == message
