"""The spellings of structured output."""

from __future__ import annotations

from typing import Any

import pytest

from tokenloom.errors import RequestError
from tokenloom.grammar_spec import GrammarSpec
from tokenloom.server.completion_body import CompletionBody
from tokenloom.server.grammar_choice import choose_grammar

SCHEMA = {"type": "object"}
SCHEMA_TEXT = '{"type":"object"}'


def chosen(**fields: Any) -> GrammarSpec | None:
    return choose_grammar(CompletionBody(prompt="x", **fields))


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", ""),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, "json_schema", SCHEMA_TEXT),
        ({"guided_json": SCHEMA}, "json_schema", SCHEMA_TEXT),
        ({"guided_json": ' {"type" : "object"} '}, "json_schema", SCHEMA_TEXT),
        ({"structured_outputs": {"json": SCHEMA, "regex": None}}, "json_schema", SCHEMA_TEXT),
        ({"structured_outputs": {"json_object": True}}, "json_object", ""),
        ({"regex": "a+"}, "regex", "a+"),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"grammar": 'start: "a"'}, "lark", 'start: "a"'),
        ({"guided_grammar": 'start: "a"'}, "lark", 'start: "a"'),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, "lark", 'start: "a"'),
        ({"guided_choice": ["a", "b"]}, "choice", '["a","b"]'),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "choice", '["a","b"]'),
    ],
)
def test_each_spelling_gives_its_grammar(fields: dict[str, Any], kind: str, text: str) -> None:
    found = chosen(**fields)
    assert found is not None
    assert (found.kind, found.text) == (kind, text)


@pytest.mark.parametrize(
    "fields", [{}, {"response_format": {"type": "text"}}, {"structured_outputs": {}}, {"response_format": None}]
)
def test_plain_text_has_no_grammar(fields: dict[str, Any]) -> None:
    assert chosen(**fields) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {}},
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}},
        {"guided_json": "{"},
        {"guided_json": "3"},
        {"guided_choice": []},
        {"guided_choice": [""]},
        {"regex": ""},
        {"structured_outputs": {"xml": 1}},
        {"structured_outputs": {"json_object": 1}},
        {"structured_outputs": {"regex": 1}},
        {"regex": "a", "grammar": "b"},
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        {"regex": "a", "response_format": {"type": "json_object"}},
    ],
)
def test_what_is_not_understood_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        chosen(**fields)
    assert caught.value.param is not None
