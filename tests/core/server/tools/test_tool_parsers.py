"""Calls of tools in replies: what is a call, what is content, and that the way a reply is cut changes nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.server.tools.cutting import cuts, parse, parse_pieces, pieces
from tokenloom.server.tools import ContentDelta, ToolCallArguments, ToolCallStart, build_tool_parser
from tokenloom.server.tools.formats import new_call_id

WEATHER = '{"name": "get_weather", "arguments": {"city": "Zürich \\"{x}\\"", "days": [1, 2]}}'
WEATHER_ARGUMENTS = '{"city": "Zürich \\"{x}\\"", "days": [1, 2]}'
MARKED = f"<tool_call>\n{WEATHER}\n</tool_call>"
BARE = WEATHER.replace("arguments", "parameters")

HERMES_CASES = {
    "plain text": ("Hello <b>world</b> {x} \n", "Hello <b>world</b> {x} \n", []),
    "one call": (MARKED, "", [("get_weather", WEATHER_ARGUMENTS)]),
    "text before": (f"Let me see.\n\n{MARKED}", "Let me see.", [("get_weather", WEATHER_ARGUMENTS)]),
    "text around": (f"One.\n{MARKED}\n{MARKED}\n\ntwo", "One.\ntwo", [("get_weather", WEATHER_ARGUMENTS)] * 2),
    "text right behind": (f"One.{MARKED} two", "One. two", [("get_weather", WEATHER_ARGUMENTS)]),
    "arguments first": ('<tool_call>{"arguments": {"a": "}"}, "name": "f"}</tool_call>', "", [("f", '{"a": "}"}')]),
    "more keys": ('<tool_call>{"id": 7, "name": "f", "arguments": {}, "x": [{}]}</tool_call>', "", [("f", "{}")]),
    "parameters": ('<tool_call>{"name": "f", "parameters": {"a": 1}}</tool_call>', "", [("f", '{"a": 1}')]),
    "unknown tool": ('<tool_call>{"name": "nope", "arguments": {}}</tool_call>', "", [("nope", "{}")]),
    "escaped name": ('<tool_call>{"name": "\\u0066", "arguments": {}}</tool_call>', "", [("f", "{}")]),
    "no arguments": ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    "null": ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    "a string": ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
    "two in one": (
        '<tool_call>{"name": "f"}\n{"name": "get_weather"}</tool_call>',
        "",
        [("f", "{}"), ("get_weather", "{}")],
    ),
    "mark in a string": (
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>"}}</tool_call>',
        "",
        [("f", '{"a": "</tool_call>"}')],
    ),
    "white space is kept": (
        '<tool_call>{"name":"f","arguments":{ "a" : 1\n}}</tool_call>',
        "",
        [("f", '{ "a" : 1\n}')],
    ),
    "not closed": ('<tool_call>{"name": "f", "arguments": {"a": 1}}', "", [("f", '{"a": 1}')]),
    "closed in part": ('<tool_call>{"name": "f", "arguments": {"a": 1}}\n</tool_', "", [("f", '{"a": 1}')]),
    "a bracket is missing": ('<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>.', ".", [("f", '{"a": 1}')]),
    "a bracket too many": ('<tool_call>{"name": "f", "arguments": {}}}</tool_call>.', "}.", [("f", "{}")]),
    "wrong JSON": ('<tool_call>{"name": "f", "arguments": {a: tru,}}</tool_call>', "", [("f", "{a: tru,}")]),
    "cut in the arguments": ('<tool_call>{"name": "f", "arguments": {"a": [1, "x', "", [("f", '{"a": [1, "x')]),
    "cut in the name": ('See: <tool_call>{"name": "f', 'See: <tool_call>{"name": "f', []),
    "cut in the mark": ("See: <tool_ca", "See: <tool_ca", []),
    "no JSON": ("A <tool_call>oops</tool_call> b", "A <tool_call>oops</tool_call> b", []),
    "no name": ('<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', []),
    "name is no text": ('<tool_call>{"name": 1}</tool_call>', '<tool_call>{"name": 1}</tool_call>', []),
    "call behind no call": (f"<tool_call>{MARKED}", "<tool_call>", [("get_weather", WEATHER_ARGUMENTS)]),
    "stray end mark": ("a </tool_call> b", "a </tool_call> b", []),
}
LLAMA_CASES = {
    "plain text": ("Hello {x}", "Hello {x}", []),
    "one call": (BARE, "", [("get_weather", WEATHER_ARGUMENTS)]),
    "space around": (f"\n {BARE}\n", "", [("get_weather", WEATHER_ARGUMENTS)]),
    "python tag": (f"<|python_tag|>{BARE}", "", [("get_weather", WEATHER_ARGUMENTS)]),
    "python tag behind text": (f"Now: <|python_tag|>{BARE}", "Now:", [("get_weather", WEATHER_ARGUMENTS)]),
    "several": (f"{BARE}; {BARE},\n{BARE}", "", [("get_weather", WEATHER_ARGUMENTS)] * 3),
    "type first": ('{"type": "function", "name": "f", "parameters": {}}', "", [("f", "{}")]),
    "bare name": ('{"name": "f"}', "", [("f", "{}")]),
    "JSON that is no call": ('{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
    "JSON without a name": ('{"answer": [1, {"name": "f"}]}', '{"answer": [1, {"name": "f"}]}', []),
    "call behind text": (f"Hi {BARE}", f"Hi {BARE}", []),
    "text behind": (f"{BARE} and so on", "and so on", [("get_weather", WEATHER_ARGUMENTS)]),
    "built-in tool": ('<|python_tag|>brave.call(query="x")', '<|python_tag|>brave.call(query="x")', []),
    "cut": ('{"name": "f", "para', '{"name": "f", "para', []),
}
PYTHONIC_CASES = {
    "plain text": ("Hello", "Hello", []),
    "calls": ('[f(a=1, b="é"), get_weather()]', "", [("f", '{"a": 1, "b": "é"}'), ("get_weather", "{}")]),
    "nested": (" [f(a={'x': [None, True]})]\n", "", [("f", '{"a": {"x": [null, true]}}')]),
    "a list": ("[1, 2]", "[1, 2]", []),
    "empty list": ("[]", "[]", []),
    "unknown tool": ("[nope(a=1)]", "[nope(a=1)]", []),
    "position": ("[f(1)]", "[f(1)]", []),
    "no literal": ("[f(a=open('x'))]", "[f(a=open('x'))]", []),
    "no JSON": ("[f(a={1})]", "[f(a={1})]", []),
    "unpacked": ("[f(**{})]", "[f(**{})]", []),
    "cut": ("[f(a=1", "[f(a=1", []),
    "deep": ("[f(a=" + "[" * 5000, "[f(a=" + "[" * 5000, []),
}
CASES = [
    pytest.param(parser, *case, id=f"{parser}: {name}")
    for parser, cases in (("hermes", HERMES_CASES), ("llama3_json", LLAMA_CASES), ("pythonic", PYTHONIC_CASES))
    for name, case in cases.items()
]


@pytest.mark.parametrize(("parser", "text", "content", "calls"), CASES)
def test_replies_are_taken_apart(parser: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    found = parse(text, parser)
    assert found.content == content
    assert [(call.name, call.arguments) for call in found.tool_calls] == calls
    assert parse_pieces(text, parser) == found, "character by character"


WORDS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<|python_tag|>", "<tool", "</", "<", "{", "}", "[", "]", '"', "\\", ",", ":"),
        *('"name"', '"f"', '"arguments"', '"parameters"', "null", "1", " ", "\n", "é", "😀", "f(", ")", "a=1", "text"),
        *('{"name": "f", "arguments": {"a": "', '"}}', WEATHER, MARKED, BARE, '{"name": "f"}', ";"),
    ]
)
REPLIES = st.lists(WORDS, max_size=14).map("".join)


@pytest.mark.parametrize("parser", ["none", "hermes", "llama3_json", "pythonic"])
@given(text=REPLIES, ends=cuts())
def test_cutting_changes_nothing_and_loses_nothing(parser: str, text: str, ends: list[int]) -> None:
    whole = parse(text, parser)
    assert parse_pieces(pieces(text, ends), parser) == whole
    if not whole.tool_calls:
        assert whole.content == text


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
CALLS = st.tuples(NAMES, st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), JSON_VALUES, max_size=3))
PROSE = st.text(st.characters(codec="utf-8", exclude_characters="<{"), max_size=12).map(str.strip)


@given(
    calls=st.lists(CALLS, min_size=1, max_size=3),
    before=PROSE,
    behind=PROSE,
    ends=cuts(),
    is_ascii=st.booleans(),
    indent=st.sampled_from([None, 2]),
)
def test_arguments_come_out_as_they_were_written(
    calls: list[tuple[str, dict[str, object]]], before: str, behind: str, ends: list[int], is_ascii: bool, indent: int
) -> None:
    bodies = [json.dumps(arguments, ensure_ascii=is_ascii, indent=indent) for _, arguments in calls]
    marked = [
        f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {body}}}\n</tool_call>'
        for (name, _), body in zip(calls, bodies)
    ]
    text = before + "\n" + "\n".join(marked) + "\n" + behind
    found = parse_pieces(pieces(text, ends), "hermes")
    assert [(call.name, call.arguments) for call in found.tool_calls] == [
        (name, body) for (name, _), body in zip(calls, bodies)
    ]
    assert found.content == (f"{before}\n{behind}" if before and behind else before + behind)


def test_a_stream_shows_what_is_certain_and_no_more() -> None:
    parser = build_tool_parser("hermes", ["f"], lambda: "call_1")
    assert parser is not None
    shown = [
        (piece, list(parser.push(piece)))
        for piece in [
            "Hi",
            " ",
            "<",
            "tool",
            '_call>{"name": "f"',
            ', "arguments": ',
            '{"a"',
            ": 1",
            "}}",
            "</tool_call",
        ]
    ]
    assert shown == [
        ("Hi", [ContentDelta("Hi")]),
        (" ", []),
        ("<", []),
        ("tool", []),
        ('_call>{"name": "f"', []),
        (', "arguments": ', []),
        ('{"a"', [ToolCallStart(0, "call_1", "f"), ToolCallArguments(0, '{"a"')]),
        (": 1", [ToolCallArguments(0, ": 1")]),
        ("}}", [ToolCallArguments(0, "}")]),
        ("</tool_call", []),
    ]
    assert list(parser.push("> ")) == []
    assert list(parser.push("bye ")) == [ContentDelta(" bye")]
    assert list(parser.finish()) == [ContentDelta(" ")]


def test_held_text_is_shown_as_soon_as_it_is_none_of_a_mark() -> None:
    parser = build_tool_parser("hermes", ["f"])
    assert parser is not None
    assert [list(parser.push(piece)) for piece in ["a <", "b"]] == [[ContentDelta("a")], [ContentDelta(" <b")]]


def test_ids_of_calls_are_unique() -> None:
    ids = {new_call_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(call_id.startswith("call_") and call_id[5:].isalnum() for call_id in ids)


def test_no_parser_takes_text_as_it_is() -> None:
    assert build_tool_parser("none", ["f"]) is None
    assert parse(MARKED, "none").content == MARKED


def test_long_arguments_cost_little() -> None:
    """Linear in the length: twice 200 KB in one piece."""
    body = json.dumps({"text": "x" * 200_000})
    text = f'<tool_call>{{"name": "f", "arguments": {body}}}</tool_call>'
    assert parse(text, "hermes").tool_calls[0].arguments == body
    assert parse_pieces((text[i : i + 50] for i in range(0, len(text), 50)), "hermes").tool_calls[0].arguments == body
