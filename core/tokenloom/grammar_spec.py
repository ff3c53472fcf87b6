"""Structured output as it is asked for: what the text must match. `tokenloom.structured` compiles it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final, get_args

from tokenloom.errors import RequestError

__all__ = ["GrammarKind", "GrammarSpec", "Thoughts"]

GrammarKind = Literal["json_object", "json_schema", "regex", "lark", "choice"]
Thoughts = Literal["none", "begun", "possible"]


@final
@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """What a request's text must match, from its first character to its last.

    Example:
        >>> GrammarSpec.choice(["yes", "no"])
        GrammarSpec(kind='choice', text='["yes", "no"]')

    Attributes:
        kind: json_object (any JSON object), json_schema, regex, lark (a grammar), or choice (one of some strings).
        text: the schema as JSON text, the regex, the grammar, or a JSON list of strings; "" for json_object.
        thoughts: free text that may come first, for models that think: "begun" lasts to the first `</think>` (the
            prompt has opened the thoughts), "possible" means that the text may begin with `<think>` and then does so.

    Raises:
        RequestError: the kind is unknown, or something is no text.
    """

    kind: GrammarKind
    text: str = ""
    thoughts: Thoughts = "none"

    def __post_init__(self) -> None:
        if self.kind not in get_args(GrammarKind):
            raise RequestError(f"structured output is one of {', '.join(get_args(GrammarKind))}, got {self.kind!r:.80}")
        if not isinstance(self.text, str):
            raise RequestError(f"{self.kind} is given as text, got {type(self.text).__name__}")

    @classmethod
    def json_object(cls) -> GrammarSpec:
        """Any JSON object."""
        return cls("json_object")

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str) -> GrammarSpec:
        """JSON that a schema allows, given as a mapping or as JSON text; e.g. `Answer.model_json_schema()`."""
        return cls("json_schema", schema if isinstance(schema, str) else _as_json("json_schema", schema))

    @classmethod
    def regex(cls, pattern: str) -> GrammarSpec:
        """Text that a regex matches as a whole (syntax of Rust's `regex`: no look-around, no back-references)."""
        return cls("regex", pattern)

    @classmethod
    def choice(cls, options: Sequence[str]) -> GrammarSpec:
        """One of some strings."""
        return cls("choice", _as_json("choice", [options] if isinstance(options, str) else list(options)))

    @classmethod
    def lark(cls, grammar: str) -> GrammarSpec:
        """A context-free grammar in llguidance's form of Lark."""
        return cls("lark", grammar)


def _as_json(kind: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{kind} cannot be written as JSON: {error}") from None
