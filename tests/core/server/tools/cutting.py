"""Replies cut into pieces, and parsed piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hypothesis import strategies as st

from tokenloom.server.tools import (
    Reply,
    ReplyParser,
    ToolCallArguments,
    ToolCallStart,
    assemble,
    build_reasoning_parser,
    build_tool_parser,
    parse_reply,
)

__all__ = ["cuts", "parse", "parse_pieces", "pieces"]

TOOLS = ("get_weather", "f")


def new_parser(tool_parser: str, reasoning_parser: str = "none", prompt: str = "") -> ReplyParser:
    """Calls are numbered, so that results can be compared."""
    numbers = iter(range(1000))
    tools = build_tool_parser(tool_parser, TOOLS, lambda: f"call_{next(numbers)}")
    return ReplyParser(build_reasoning_parser(reasoning_parser, prompt), tools)


def parse(text: str, tool_parser: str, reasoning_parser: str = "none", prompt: str = "") -> Reply:
    """A reply as a whole."""
    return parse_reply(text, new_parser(tool_parser, reasoning_parser, prompt))


def parse_pieces(parts: Iterable[str], tool_parser: str, reasoning_parser: str = "none", prompt: str = "") -> Reply:
    """A reply in pieces; checks that deltas come in a legal order and that none is empty."""
    parser = new_parser(tool_parser, reasoning_parser, prompt)
    deltas = [delta for part in parts for delta in parser.push(part)]
    deltas += parser.finish()
    num_calls = 0
    for delta in deltas:
        if isinstance(delta, ToolCallStart):
            assert delta.index == num_calls
            num_calls += 1
        elif isinstance(delta, ToolCallArguments):
            assert delta.index == num_calls - 1
            assert delta.fragment
        else:
            assert delta.text
    return assemble(deltas)


def pieces(text: str, ends: Iterable[int]) -> Iterator[str]:
    """`text` cut at `ends`, which are taken modulo its length."""
    start = 0
    for end in sorted({end % (len(text) + 1) for end in ends} | {len(text)}):
        yield text[start:end]
        start = end


def cuts() -> st.SearchStrategy[list[int]]:
    """Where to cut."""
    return st.lists(st.integers(0, 400), max_size=30)
