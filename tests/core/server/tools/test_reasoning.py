"""Thoughts at the beginning of a reply: where they end, and that cutting changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.server.tools.cutting import cuts, parse, parse_pieces, pieces
from tokenloom.server.tools import ContentDelta, ReasoningDelta, build_reasoning_parser, thoughts_before

OPENED = "<|im_start|>assistant\n<think>\n"
CASES = {
    "thoughts": ("qwen3", "", "<think>\nhm, so\n</think>\n\nHi", "hm, so", "Hi"),
    "none": ("qwen3", "", "Hi", "", "Hi"),
    "empty": ("qwen3", "", "<think>\n\n</think>\n\nHi", "", "Hi"),
    "leading space": ("qwen3", "", "\n<think>a</think>b", "a", "b"),
    "leading space only": ("qwen3", "", "\n b", "", "\n b"),
    "never closed": ("qwen3", "", "<think>hm ", "hm ", ""),
    "cut in the first mark": ("qwen3", "", "<thin", "", "<thin"),
    "cut in the last mark": ("qwen3", "", "<think>a </thi", "a </thi", ""),
    "mark later": ("qwen3", "", "Hi <think>a</think>", "", "Hi <think>a</think>"),
    "opened by the prompt": ("qwen3", OPENED, "hm\n</think>\nHi", "hm", "Hi"),
    "opened twice": ("qwen3", OPENED, "<think>\nhm</think>Hi", "hm", "Hi"),
    "opened, never closed": ("qwen3", OPENED, "hm", "hm", ""),
    "closed by the prompt": ("qwen3", OPENED + "\n</think>\n\n", "Hi", "", "Hi"),
    "mark in thoughts": ("qwen3", OPENED, "a <think> b</think>c</think>", "a <think> b", "c</think>"),
    "R1 leaves the mark out": ("deepseek_r1", "", "hm\n</think>\n\nHi", "hm", "Hi"),
    "R1 writes the mark": ("deepseek_r1", "", "<think>\nhm\n</think>\n\nHi", "hm", "Hi"),
    "R1 closed by the prompt": ("deepseek_r1", OPENED + "</think>", "Hi", "", "Hi"),
}


@pytest.mark.parametrize(("name", "prompt", "text", "reasoning", "content"), CASES.values(), ids=CASES)
def test_thoughts_are_split_off(name: str, prompt: str, text: str, reasoning: str, content: str) -> None:
    found = parse(text, "none", name, prompt)
    assert (found.reasoning, found.content) == (reasoning, content)
    assert parse_pieces(text, "none", name, prompt) == found


WORDS = st.sampled_from(["<think>", "</think>", "<", "</th", "think>", "a", "é", " ", "\n", '<tool_call>{"name": "f"}'])


@pytest.mark.parametrize("name", ["qwen3", "deepseek_r1"])
@given(text=st.lists(WORDS, max_size=10).map("".join), ends=cuts(), prompt=st.sampled_from(["", OPENED]))
def test_cutting_changes_nothing(name: str, text: str, ends: list[int], prompt: str) -> None:
    assert parse_pieces(pieces(text, ends), "hermes", name, prompt) == parse(text, "hermes", name, prompt)


def test_calls_are_looked_for_behind_the_thoughts_only() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    found = parse(f"<think>I could say {call}</think>\n{call}", "hermes", "qwen3")
    assert found.reasoning == f"I could say {call}"
    assert found.content == ""
    assert [tool_call.name for tool_call in found.tool_calls] == ["f"]


def test_a_stream_holds_back_marks_only() -> None:
    parser = build_reasoning_parser("qwen3", OPENED)
    assert parser is not None
    assert [list(parser.push(piece)) for piece in ["So", " it", " </", "x", "</think>", "\n", "Hi"]] == [
        [ReasoningDelta("So")],
        [ReasoningDelta(" it")],
        [],
        [ReasoningDelta(" </x")],
        [],
        [],
        [ContentDelta("Hi")],
    ]
    assert list(parser.finish()) == []


@pytest.mark.parametrize(
    ("name", "prompt", "expected"),
    [
        ("none", OPENED, "none"),
        ("qwen3", OPENED, "begun"),
        ("qwen3", "assistant\n", "possible"),
        ("qwen3", OPENED + "\n</think>\n\n", "none"),
        ("deepseek_r1", "assistant\n", "begun"),
        ("deepseek_r1", "</think>", "none"),
    ],
)
def test_grammars_are_told_which_thoughts_come_first(name: str, prompt: str, expected: str) -> None:
    assert thoughts_before(name, prompt) == expected
