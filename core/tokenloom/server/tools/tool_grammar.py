"""Forces a reply to be calls of tools, written as the parser of the same name reads them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import RequestError
from tokenloom.grammar_spec import GrammarSpec, Thoughts
from tokenloom.server.tools.json_calls import HERMES
from tokenloom.structured.grammar_text import inline_schema
from tokenloom.structured.schema_check import check_schema

__all__ = ["OfferedTool", "tool_grammar"]

_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool that a request offers; `parameters` is the JSON schema of its arguments, None for a tool without any."""

    name: str
    parameters: Mapping[str, Any] | None = None


def tool_grammar(
    tool_parser: str,
    tools: Sequence[OfferedTool],
    *,
    allows_several: bool = True,
    special_tokens: Collection[str] = (),
    thoughts: Thoughts = "none",
) -> GrammarSpec:
    """The grammar for tool_choice=required, or for one named tool: give only that one, and `allows_several=False`.

    Args:
        tool_parser: name of the parser that will read the reply.
        tools: which may be called; at least one.
        allows_several: whether more than one call may be made.
        special_tokens: which of the parser's marks are special tokens of the vocabulary, see `special_marks`.
        thoughts: see `thoughts_before`.

    Raises:
        RequestError: the parser has no way to be forced, or a tool's parameters are no schema of an object, or hold
            what is refused. What else the library cannot do is found when the grammar is compiled.
    """
    assert tools, "no tool to call"
    if tool_parser not in ("hermes", "llama3_json"):
        raise RequestError(
            f"no call can be forced with server.tool_parser={tool_parser}; try tool_choice='auto', or a model whose "
            "calls are written as JSON",
            "tool_choice",
        )
    is_hermes = tool_parser == "hermes"
    key, separator = ("arguments", r'"\n"') if is_hermes else ("parameters", '"; "')
    rules = [f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}"]
    for index, tool in enumerate(tools):
        head = json.dumps(f'{{"name": {json.dumps(tool.name)}, "{key}": ')
        body = f'{head} args_{index} "}}"'
        rules.append(f"call_{index}: {_marked(body, special_tokens) if is_hermes else body}")
        rules.append(f"args_{index}: {_inline_schema(tool, index)}")
    start = f"start: call ({separator} call)*" if allows_several else "start: call"
    return GrammarSpec("lark", "\n".join([start, *rules]), thoughts)


def _marked(body: str, special_tokens: Collection[str]) -> str:
    opening, closing = (
        mark if mark in special_tokens else json.dumps(mark) for mark in (HERMES.open_mark, HERMES.close_mark or "")
    )
    return rf'{opening} "\n" {body} "\n" {closing}'


def _inline_schema(tool: OfferedTool, index: int) -> str:
    where = f"tools[{index}].function.parameters"
    schema = _NO_PARAMETERS if tool.parameters is None else tool.parameters
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise RequestError(f"{where} must be a JSON schema of type 'object', got {schema!r:.80}", where)
    whole = {"type": "object", **schema}
    try:
        check_schema(whole)
    except RequestError as error:
        raise RequestError(f"{where}: {error}", where) from None
    return inline_schema(whole)
