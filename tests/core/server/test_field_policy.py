"""Fields that are not ours: harmless, refused, or named in a header."""

from __future__ import annotations

import pytest

from tokenloom.server.api_errors import ApiError
from tokenloom.server.chat_body import ChatBody
from tokenloom.server.completion_body import CompletionBody
from tokenloom.server.field_policy import HARMLESS, UNSUPPORTED, check_fields

KNOWN = {*CompletionBody.model_fields, *ChatBody.model_fields}


def test_own_and_harmless_fields_are_taken() -> None:
    assert check_fields({"prompt": "x", "top_k": 1, **dict.fromkeys(HARMLESS, "x")}, CompletionBody.model_fields) == ()


@pytest.mark.parametrize("name", ["temprature", "max_token", "topp", "stop_token_id", "response_fromat", "messsages"])
def test_misspellings_are_refused_with_what_was_meant(name: str) -> None:
    with pytest.raises(ApiError, match="Did you mean") as caught:
        check_fields({name: 1}, ChatBody.model_fields)
    assert (caught.value.status, caught.value.param) == (400, name)


def test_every_misspelt_field_is_refused() -> None:
    for name in KNOWN - HARMLESS:
        wrong = name[:-1] if len(name) > 4 else name + "s"
        if len(wrong) > 3 and wrong not in KNOWN:
            with pytest.raises(ApiError):
                check_fields({wrong: 1}, KNOWN)


def test_strange_fields_are_named() -> None:
    assert check_fields({"chat_id": 1, "mirostat": 2}, ChatBody.model_fields) == ("chat_id", "mirostat")


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_cannot_be_honoured_is_refused_unless_it_asks_for_nothing(name: str) -> None:
    for value in UNSUPPORTED[name]:
        assert check_fields({name: value}, KNOWN) == ()
    for value in ("something", 2, [{"x": 1}]):
        with pytest.raises(ApiError, match="not supported"):
            check_fields({name: value}, KNOWN)


def test_no_field_is_listed_twice() -> None:
    assert not UNSUPPORTED.keys() & HARMLESS
    assert not UNSUPPORTED.keys() & KNOWN
