"""Which structured output a request asks for, whichever of its several spellings it uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tokenloom.errors import RequestError
from tokenloom.grammar_spec import GrammarSpec
from tokenloom.server.generation_body import GenerationBody

__all__ = ["choose_grammar", "grammar_field"]

_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}


def choose_grammar(body: GenerationBody) -> GrammarSpec | None:
    """The constraint on the text, or None.

    Raises:
        RequestError: it is not understood, or there are several.
    """
    found: dict[str, GrammarSpec] = {}
    if body.response_format is not None:
        spec = _from_response_format(body.response_format)
        if spec is not None:
            found["response_format"] = spec
    for name, kind in {"regex": "regex", "grammar": "grammar", **_GUIDED}.items():
        value = getattr(body, name)
        if value is not None:
            found[name] = _spec(kind, value, name)
    if body.structured_outputs is not None:
        found.update(_from_structured_outputs(body.structured_outputs))
    if len(found) > 1:
        raise RequestError(f"{' and '.join(found)} each constrain the text; give one of them", next(iter(found)))
    return next(iter(found.values()), None)


def grammar_field(body: GenerationBody) -> str:
    """The field that constrains the text; without one, only a tool can."""
    fields = ("regex", "grammar", *_GUIDED, "structured_outputs", "response_format")
    kind = (body.response_format or {}).get("type")
    given = [name for name in fields if getattr(body, name) is not None]
    return next((name for name in given if name != "response_format" or kind != "text"), "tools")


def _from_response_format(value: Mapping[str, Any]) -> GrammarSpec | None:
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return GrammarSpec("json_object")
    if kind != "json_schema":
        raise RequestError(
            f"response_format.type must be 'text', 'json_object' or 'json_schema', got {kind!r:.80}",
            "response_format.type",
        )
    holder = value.get("json_schema")
    if not isinstance(holder, Mapping):
        raise RequestError(
            'response_format.json_schema must be an object, {"name": ..., "schema": {...}}', "response_format"
        )
    # vLLM's clients say json_schema, OpenAI's schema.
    schema = holder.get("schema", holder.get("json_schema"))
    if schema is None:
        raise RequestError("response_format.json_schema.schema is required", "response_format.json_schema.schema")
    return _spec("json", schema, "response_format.json_schema.schema")


def _from_structured_outputs(value: Mapping[str, Any]) -> dict[str, GrammarSpec]:
    given = {kind: item for kind, item in value.items() if item not in (None, False)}
    unknown = sorted(set(given) - {"json", "regex", "choice", "grammar", "json_object"})
    if unknown:
        raise RequestError(
            f"structured_outputs takes json, regex, choice, grammar or json_object, not {', '.join(unknown)}",
            "structured_outputs",
        )
    return {
        f"structured_outputs.{kind}": _spec(kind, item, f"structured_outputs.{kind}") for kind, item in given.items()
    }


def _spec(kind: str, value: Any, name: str) -> GrammarSpec:
    if kind == "json_object":
        if value is not True:
            raise RequestError(f"{name} must be true or false, got {value!r:.80}", name)
        return GrammarSpec("json_object")
    if kind == "json":
        return GrammarSpec("json_schema", _schema_text(value, name))
    if kind == "choice":
        is_legal = isinstance(value, list) and value and all(isinstance(item, str) and item for item in value)
        if not is_legal:
            raise RequestError(f"{name} must be a list of non-empty strings, got {value!r:.80}", name)
        return GrammarSpec("choice", msgspec.json.encode(value).decode())
    if not isinstance(value, str) or not value:
        raise RequestError(f"{name} must be a non-empty string, got {value!r:.80}", name)
    return GrammarSpec("regex" if kind == "regex" else "lark", value)


def _schema_text(value: Any, name: str) -> str:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise RequestError(f"{name} is no JSON: {error}", name) from None
    if not isinstance(value, Mapping | bool):
        raise RequestError(f"{name} must be a JSON schema (an object), got {value!r:.80}", name)
    return msgspec.json.encode(value).decode()
