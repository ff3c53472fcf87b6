"""Which parser a model gets, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.byte_level_vocabulary import CHATML, byte_level_metadata
from tokenloom.checkpoint.tokenizer_source import TokenizerSource
from tokenloom.errors import ConfigError
from tokenloom.server.tools import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    build_reasoning_parser,
    build_tool_parser,
    choose_reasoning_parser,
    choose_tool_parser,
    marks_of,
    special_marks,
)
from tokenloom.text import build_tokenizer

QWEN3 = (
    "{% if tools %}For each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags{% endif %}{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)
LLAMA31 = (
    "{% if tools is not none %}Respond in the format "
    '{"name": function name, "parameters": dictionary of argument name and its value}.{% endif %}'
)
LLAMA31_BUILT_IN = "{% if tools %}{{ '<|python_tag|>' + tool_call.name }}{% endif %}"
PYTHONIC = "{% if tools %}[func_name1(params_name1=params_value1, params_name2=params_value2...)]{% endif %}"
OTHER = "{% for tool in tools %}[TOOL_CALLS]{% endfor %}"


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        (None, "none", "none"),
        (CHATML, "none", "none"),
        (QWEN3, "hermes", "qwen3"),
        (LLAMA31, "llama3_json", "none"),
        (LLAMA31_BUILT_IN, "llama3_json", "none"),
        (PYTHONIC, "pythonic", "none"),
        (OTHER, "none", "none"),
        ("{{ content.split('</think>')[-1] }}", "none", "qwen3"),
    ],
)
def test_auto_reads_the_chat_template_and_says_why(template: str | None, tools: str, reasoning: str) -> None:
    tool_choice, reasoning_choice = choose_tool_parser("auto", template), choose_reasoning_parser("auto", template)
    assert (tool_choice.name, reasoning_choice.name) == (tools, reasoning)
    assert "the chat template" in tool_choice.reason
    assert "the chat template" in reasoning_choice.reason


def test_a_named_parser_is_taken_whatever_the_template_says() -> None:
    for name in TOOL_PARSERS:
        assert choose_tool_parser(name, QWEN3).name == name
        assert (build_tool_parser(name, ["f"]) is None) == (name == "none")
    for name in REASONING_PARSERS:
        assert choose_reasoning_parser(name, None).name == name
        assert (build_reasoning_parser(name, "") is None) == (name == "none")


def test_an_unknown_parser_is_refused_with_those_that_exist() -> None:
    with pytest.raises(
        ConfigError, match=r"server.tool_parser must be auto or one of none, hermes.*Did you mean 'hermes'"
    ):
        choose_tool_parser("hermmes", None)
    with pytest.raises(ConfigError, match=r"server.reasoning_parser must be auto or one of none, qwen3"):
        choose_reasoning_parser("think", None)


def test_marks_that_are_special_tokens_are_told() -> None:
    metadata = byte_level_metadata()
    tokens, kinds = list(metadata["tokenizer.ggml.tokens"]), list(metadata["tokenizer.ggml.token_type"])
    assert tokens[-1] == "<tool_call>"
    marks = marks_of("hermes", "qwen3")
    assert marks == ("<tool_call>", "</tool_call>", "<think>", "</think>")
    for kind, expected in ((4, set()), (3, {"<tool_call>"})):
        metadata["tokenizer.ggml.token_type"] = [*kinds[:-1], kind]
        tokenizer = build_tokenizer(TokenizerSource("gguf", Path("tiny.gguf"), metadata, CHATML), len(tokens))
        assert special_marks(marks, tokenizer) == expected
    assert marks_of("none", "none") == marks_of("pythonic", "none") == ()
