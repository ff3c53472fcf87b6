"""Errors that cross between processes: what comes out is what went in."""

from __future__ import annotations

import msgspec
import pytest

from tokenloom.engine_process.fault import Fault, fault_of
from tokenloom.errors import (
    CONTEXT_LENGTH_EXCEEDED,
    ConfigError,
    EngineDeadError,
    OverloadedError,
    PluginContractError,
    RequestError,
    TokenloomError,
)
from tokenloom.server.api_errors import api_error


@pytest.mark.parametrize(
    ("error", "crossed", "status", "code"),
    [
        (RequestError("too long", "prompt", code=CONTEXT_LENGTH_EXCEEDED), RequestError, 400, CONTEXT_LENGTH_EXCEEDED),
        (RequestError("wrong"), RequestError, 400, None),
        (OverloadedError("full", retry_after_s=2.5), OverloadedError, 429, "overloaded"),
        (EngineDeadError("gone"), EngineDeadError, 503, "engine_unavailable"),
        (PluginContractError("cache=x", "a rule", "broken"), TokenloomError, 500, "internal_error"),
        (ConfigError("no"), TokenloomError, 500, "internal_error"),
        (ZeroDivisionError("of ours"), TokenloomError, 500, "internal_error"),
    ],
)
def test_an_error_crosses_with_its_class_and_all_that_the_answer_needs(
    error: Exception, crossed: type[TokenloomError], status: int, code: str | None
) -> None:
    fault = msgspec.msgpack.decode(msgspec.msgpack.encode(fault_of(error)), type=Fault)
    again = fault.error()
    assert type(again) is crossed
    told = api_error(again, 1)
    assert (told.status, told.code) == (status, code)
    assert told.param == getattr(error, "param", None)
    assert getattr(again, "retry_after_s", None) == getattr(error, "retry_after_s", None)


def test_the_field_at_fault_is_the_errors_own_where_it_names_one() -> None:
    assert fault_of(RequestError("x", "n"), "response_format").param == "n"
    assert fault_of(RequestError("x"), "response_format").param == "response_format"
