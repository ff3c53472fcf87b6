"""Forced calls: whatever a model says under the grammar, the parser finds calls of the tools with legal arguments."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from tests.byte_level_vocabulary import CHATML, byte_level_metadata
from tests.core.structured.walking import compiled, legal_ids, takes, walk
from tokenloom.checkpoint.tokenizer_source import TokenizerSource
from tokenloom.errors import RequestError
from tokenloom.server.tools import (
    OfferedTool,
    ReplyParser,
    build_reasoning_parser,
    build_tool_parser,
    parse_reply,
    tool_grammar,
)
from tokenloom.text import Tokenizer, build_tokenizer

COMPACT = {"x-guidance": {"whitespace_flexible": False}}
TOOLS = [
    OfferedTool(
        "get_weather",
        {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city"],
            "additionalProperties": False,
            "$defs": {"city": {"type": "string", "maxLength": 4}},
            **COMPACT,
        },
    ),
    OfferedTool('odd "name"\\', {"properties": {"on": {"type": "boolean"}}, "additionalProperties": False, **COMPACT}),
    OfferedTool("now"),
]
SCHEMAS = {tool.name: tool.parameters or {"maxProperties": 0} for tool in TOOLS}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    metadata = byte_level_metadata()
    source = TokenizerSource("gguf", Path("tiny.gguf"), metadata, CHATML)
    return build_tokenizer(source, len(metadata["tokenizer.ggml.tokens"]))


@pytest.mark.parametrize("parser", ["hermes", "llama3_json"])
@pytest.mark.parametrize("allows_several", [True, False])
def test_forced_calls_are_found_by_the_parser(parser: str, allows_several: bool, tokenizer: Tokenizer) -> None:
    constraint = compiled(tool_grammar(parser, TOOLS, allows_several=allows_several), tokenizer)
    names: set[str] = set()
    numbers: list[int] = []
    for seed in range(25):
        cursor = constraint.fork()
        text = tokenizer.decode(walk(cursor, tokenizer, random.Random(seed), 400))
        reply = parse_reply(text, ReplyParser(None, build_tool_parser(parser, SCHEMAS)))
        if not cursor.is_terminated:
            continue
        assert reply.content == ""
        numbers.append(len(reply.tool_calls))
        for call in reply.tool_calls:
            names.add(call.name)
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
    assert names == set(SCHEMAS)
    assert min(numbers) == 1
    assert (max(numbers) > 1) == allows_several


def test_one_named_tool_is_the_only_one_that_can_be_called(tokenizer: Tokenizer) -> None:
    constraint = compiled(tool_grammar("hermes", TOOLS[2:], allows_several=False), tokenizer)
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert takes(constraint, call, tokenizer)
    assert not takes(constraint, f"{call}\n{call}", tokenizer)
    assert not takes(constraint, call.replace("now", "get_weather"), tokenizer)


def test_calls_come_behind_thoughts(tokenizer: Tokenizer) -> None:
    call = '{"name": "now", "parameters": {}}'
    for thoughts, prompt, replies in (
        ("begun", "<think>\n", ["hm <tool_call></think>\n\n", "</think>"]),
        ("possible", "assistant\n", ["<think>\nhm</think>", ""]),
    ):
        constraint = compiled(tool_grammar("llama3_json", TOOLS, thoughts=thoughts), tokenizer)  # type: ignore[arg-type]
        assert not takes(constraint, "hm", tokenizer)
        for reply in replies:
            assert takes(constraint, reply + call, tokenizer)
            parser = ReplyParser(build_reasoning_parser("qwen3", prompt), build_tool_parser("llama3_json", SCHEMAS))
            found = parse_reply(reply + call, parser)
            assert [tool_call.name for tool_call in found.tool_calls] == ["now"]


def test_marks_that_are_special_tokens_are_said_as_such() -> None:
    metadata = byte_level_metadata()
    kinds = metadata["tokenizer.ggml.token_type"]
    metadata["tokenizer.ggml.token_type"] = [*kinds[:-1], 3]
    num_tokens = len(metadata["tokenizer.ggml.tokens"])
    tokenizer = build_tokenizer(TokenizerSource("gguf", Path("tiny.gguf"), metadata, CHATML), num_tokens)
    spelled = compiled(tool_grammar("hermes", TOOLS), tokenizer)
    assert num_tokens - 1 not in legal_ids(spelled, tokenizer)
    special = compiled(tool_grammar("hermes", TOOLS, special_tokens={"<tool_call>"}), tokenizer)
    assert legal_ids(special, tokenizer) == [num_tokens - 1]


def test_what_cannot_be_forced_is_refused() -> None:
    for parser in ("none", "pythonic"):
        with pytest.raises(RequestError, match=f"no call can be forced with server.tool_parser={parser}") as caught:
            tool_grammar(parser, TOOLS)
        assert caught.value.param == "tool_choice"
    with pytest.raises(RequestError, match=r"tools\[0\].function.parameters: schema: 'typ' is no keyword") as caught:
        tool_grammar("hermes", [OfferedTool("f", {"typ": "object"})])
    assert caught.value.param == "tools[0].function.parameters"
    with pytest.raises(RequestError, match=r"tools\[1\].function.parameters must be a JSON schema of type 'object'"):
        tool_grammar("hermes", [TOOLS[0], replace(TOOLS[1], parameters={"type": "string"})])


def test_faults_in_parameters_are_found_when_the_grammar_is_compiled(tokenizer: Tokenizer) -> None:
    tool = OfferedTool("f", {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}})
    with pytest.raises(RequestError, match=r"Unimplemented keys.*uniqueItems"):
        compiled(tool_grammar("hermes", [tool]), tokenizer)
