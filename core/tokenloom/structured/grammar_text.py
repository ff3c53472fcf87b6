"""From a `GrammarSpec` to the library's own text, with the limits that keep a hostile one cheap."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from llguidance import LLMatcher

from tokenloom.errors import RequestError
from tokenloom.grammar_spec import GrammarKind, GrammarSpec, Thoughts
from tokenloom.structured.schema_check import MAX_PATTERN_CHARS, check_schema

__all__ = ["MAX_TEXT_CHARS", "inline_schema", "library_grammar"]

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_Grammar = dict[str, Any]

MAX_TEXT_CHARS = 65_536
"""Compiling takes time and stack that grow with the text."""
_MAX_CHOICES = 10_000
# A model that is free to write white space may write nothing else, without end.
_BOUNDED_SPACE = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,40}"}
# Where only one text can follow, the library would allow only its usual tokens, and yet take others.
_EXACT_MASKS = '%llguidance {"no_forcing": true}'
_LARK_PARTS = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|\#[^\n]*|/(?:\\.|[^/\\\n])+/|%json\b', re.DOTALL)


def library_grammar(spec: GrammarSpec, special_tokens: Collection[str] = ()) -> str:
    """Writes `spec` as the library takes it.

    Args:
        spec: what the text must match.
        special_tokens: names of the vocabulary's special tokens, which no text spells.

    Raises:
        RequestError: it is too long, no JSON where JSON is due, or asks for what cannot be kept or afforded.
    """
    if len(spec.text) > MAX_TEXT_CHARS:
        raise RequestError(
            f"the {spec.kind} has {len(spec.text)} characters, more than the {MAX_TEXT_CHARS} that are allowed"
        )
    try:
        spec.text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"the {spec.kind} holds half of a surrogate pair; send the whole character") from None
    answer = _WRITERS[spec.kind](spec.text)
    if spec.thoughts == "none" and "lark_grammar" in answer:
        return json.dumps({"grammars": [answer]})
    frame = f"{_frame(spec.thoughts, special_tokens)}\n{_EXACT_MASKS}"
    return json.dumps({"grammars": [{"lark_grammar": frame}, {"name": "answer", **answer}]})


def inline_schema(schema: Mapping[str, Any]) -> str:
    """A JSON schema as a rule of a Lark grammar can hold it, with white space as in the kind json_schema."""
    return f"%json {json.dumps(_with_bounded_space(schema))}"


def _frame(thoughts: Thoughts, special_tokens: Collection[str]) -> str:
    """The rule in which the answer stands, behind thoughts."""
    if thoughts == "none":
        return "start: @answer"
    opening = _THINK_OPEN if _THINK_OPEN in special_tokens else f'"{_THINK_OPEN}"'
    start = "thoughts SPACE? @answer" if thoughts == "begun" else f"({opening} thoughts SPACE?)? @answer"
    is_special = _THINK_CLOSE in special_tokens
    free = f"thoughts: /(?s:.*)/ {_THINK_CLOSE}" if is_special else "thoughts[lazy]: /(?s:.*)<\\/think>/"
    return f"start: {start}\n{free}\nSPACE: /[ \\t\\r\\n]{{1,8}}/"


def _json_object(_text: str) -> _Grammar:
    return {"json_schema": _with_bounded_space({"type": "object"})}


def _json_schema(text: str) -> _Grammar:
    schema = _parsed(text, "json_schema")
    if not isinstance(schema, dict) and schema is not True:
        raise RequestError(f"a JSON schema is an object or true, got {text[:80]}")
    check_schema(schema)
    return {"json_schema": _with_bounded_space(schema if isinstance(schema, dict) else {})}


def _with_bounded_space(schema: Mapping[str, Any]) -> dict[str, Any]:
    options = schema.get("x-guidance", {})
    if not isinstance(options, dict):
        raise RequestError(f"the schema's x-guidance is an object, got {options!r:.80}")
    says_space = "whitespace_flexible" in options or "whitespace_pattern" in options
    return {**schema, "x-guidance": options if says_space else {**_BOUNDED_SPACE, **options}}


def _lark_grammar(text: str) -> _Grammar:
    # Behind the text, so that the lines of error messages are its own.
    return {"lark_grammar": f"{text}\n{_EXACT_MASKS}\n"}


def _regex(text: str) -> _Grammar:
    if len(text) > MAX_PATTERN_CHARS:
        raise RequestError(f"the regex has {len(text)} characters, more than the {MAX_PATTERN_CHARS} that are allowed")
    if not text:
        raise RequestError("the regex is empty and would allow no text")
    return _lark_grammar(json.loads(LLMatcher.grammar_from_regex(text))["grammars"][0]["lark_grammar"])


def _lark(text: str) -> _Grammar:
    """Looks for what is checked in the other kinds, too: long regexes and JSON schemas."""
    position = 0
    while (found := _LARK_PARTS.search(text, position)) is not None:
        position = found.end()
        if found[0] == "%json":
            position = _check_inline_schema(text, position)
        elif found[0].startswith("/") and len(found[0]) > MAX_PATTERN_CHARS:
            raise RequestError(f"a regex in the grammar is longer than the {MAX_PATTERN_CHARS} characters allowed")
    return _lark_grammar(text)


def _check_inline_schema(text: str, position: int) -> int:
    start = len(text) - len(text[position:].lstrip())
    try:
        schema, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the grammar has no JSON schema behind %json: {error}") from None
    check_schema(schema)
    return end


def _choice(text: str) -> _Grammar:
    options = _parsed(text, "choice")
    if not isinstance(options, list) or not options or not all(isinstance(option, str) for option in options):
        raise RequestError(f"a choice is a list of strings, at least one, got {text[:80]}")
    if len(options) > _MAX_CHOICES:
        raise RequestError(f"a choice among {len(options)} strings is too much; at most {_MAX_CHOICES} are allowed")
    if "" in options:
        raise RequestError("an empty string cannot be a choice")
    strings = " | ".join(json.dumps(option) for option in dict.fromkeys(options))
    return _lark_grammar(f"start: CHOICE\nCHOICE: {strings}")


def _parsed(text: str, kind: GrammarKind) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the {kind} is no JSON: {error}") from None


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"{digits} is out of range")
    return value


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number")


_WRITERS: Mapping[GrammarKind, Callable[[str], _Grammar]] = {
    "json_object": _json_object,
    "json_schema": _json_schema,
    "regex": _regex,
    "lark": _lark,
    "choice": _choice,
}
