"""Refuses what a JSON schema must not hold: words that would be ignored in silence, and numbers that cost too much.

llguidance refuses the keywords that it does not implement; words that it does not know it takes for annotations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from itertools import groupby
from typing import Any

from tokenloom.errors import RequestError, did_you_mean
from tokenloom.structured.schema_places import check_place

__all__ = ["MAX_OPTIONAL_KEYS", "MAX_PATTERN_CHARS", "check_schema"]

MAX_PATTERN_CHARS = 4096
MAX_OPTIONAL_KEYS = 250
"""In a row: any of them may come next, so each is looked at, at each place where an object may go on."""
_MAX_MULTIPLE = 10_000

_SCHEMA = frozenset(
    {"items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains", "propertyNames"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
_SCHEMA_LIST = frozenset({"anyOf", "allOf", "oneOf", "prefixItems", "items"})
_SCHEMA_MAP = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_COMBINING = frozenset({"anyOf", "allOf", "oneOf", "$ref"})
_VALUES = frozenset(
    {"type", "const", "enum", "required", "pattern", "format", "minLength", "maxLength", "minimum", "maximum"}
    | {"exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minItems", "maxItems", "uniqueItems", "minContains"}
    | {"maxContains", "minProperties", "maxProperties", "dependentRequired", "dependencies", "$ref", "$dynamicRef"}
    | {"$recursiveRef"}
)
_ANNOTATIONS = frozenset(
    {"$schema", "$id", "id", "$anchor", "$comment", "$vocabulary", "title", "description", "default", "examples"}
    | {"example", "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType", "contentSchema"}
    | {"discriminator", "propertyOrdering"}
)
_NUMBERS = frozenset({"const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_KNOWN = _SCHEMA | _SCHEMA_LIST | _SCHEMA_MAP | _VALUES | _ANNOTATIONS


def check_schema(schema: Any) -> None:
    """Checks a schema and all schemas in it.

    Args:
        schema: as it was parsed.

    Raises:
        RequestError: a keyword is unknown, or asks for more than can be kept or afforded.
    """
    multiples: list[Decimal] = []
    is_combined = False
    for where, node in _schemas(schema):
        for word in node:
            if word not in _KNOWN and not word.startswith("x-"):
                raise RequestError(
                    f"{where}: {word!r:.80} is no keyword of JSON Schema that is known here; an annotation of your own "
                    f"begins with 'x-'.{did_you_mean(word, _KNOWN)}"
                )
        is_combined = is_combined or not _COMBINING.isdisjoint(node)
        _check_pattern(node, where)
        _check_num_properties(node, where)
        _check_num_optional(node, where)
        check_place(schema, node, where)
        _check_digits([node[word] for word in _NUMBERS & node.keys()], where)
        if "multipleOf" in node:
            multiples.append(_multiple(node["multipleOf"], where))
    _check_multiples(multiples, is_combined=is_combined)


def _schemas(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema that is an object, with its place."""
    waiting: list[tuple[str, Any]] = [("schema", schema)]
    while waiting:
        where, node = waiting.pop()
        if not isinstance(node, dict):
            continue
        yield where, node
        for word, value in node.items():
            if word in _SCHEMA_MAP and isinstance(value, dict):
                waiting += [(f"{where}.{word}.{name:.40}", item) for name, item in value.items()]
            elif word in _SCHEMA_LIST and isinstance(value, list):
                waiting += [(f"{where}.{word}[{index}]", item) for index, item in enumerate(value)]
            elif word in _SCHEMA:
                waiting.append((f"{where}.{word}", value))


def _check_pattern(node: dict[str, Any], where: str) -> None:
    patterns = [node.get("pattern"), *_keys(node.get("patternProperties"))]
    if any(isinstance(pattern, str) and len(pattern) > MAX_PATTERN_CHARS for pattern in patterns):
        raise RequestError(f"{where}: a pattern is longer than the {MAX_PATTERN_CHARS} characters that are allowed")


def _check_num_properties(node: dict[str, Any], where: str) -> None:
    """The grammar cannot tell that a free key comes twice, so only as many keys are sure as have fixed names."""
    least, required = node.get("minProperties"), node.get("required")
    num_fixed = len(required) if isinstance(required, list) else 0
    if isinstance(least, int) and least > num_fixed + 1:
        raise RequestError(
            f"{where}: minProperties={least} cannot be kept: at most {num_fixed + 1} different keys are sure, those in "
            f"'required' and one more. Name the keys in 'properties' and 'required'"
        )


def _check_num_optional(node: dict[str, Any], where: str) -> None:
    properties, required = node.get("properties"), node.get("required")
    if not isinstance(properties, dict) or len(properties) <= MAX_OPTIONAL_KEYS:
        return
    always = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
    runs = (len(list(run)) for is_fixed, run in groupby(properties, always.__contains__) if not is_fixed)
    longest = max(runs, default=0)
    if longest > MAX_OPTIONAL_KEYS:
        raise RequestError(
            f"{where}: {longest} optional keys follow each other in 'properties', at most {MAX_OPTIONAL_KEYS} are "
            "allowed; name more of them in 'required', or put some into an object of their own"
        )


def _check_digits(values: list[Any], where: str) -> None:
    """The library reads numbers with this many digits exactly, and no more."""
    while values:
        value = values.pop()
        if isinstance(value, dict | list):
            values.extend(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, float):
            _sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
            if len(digits) > 15 or not -22 <= int(exponent) <= 22:
                raise RequestError(f"{where}: {value!r} has more than the 15 digits that are read exactly")
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise RequestError(f"{where}: an integer of {value.bit_length()} bits is too large; 64 bits are allowed")


def _multiple(value: Any, where: str) -> Decimal:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    multiple = Decimal(repr(value)) if is_number else Decimal("nan")
    if not multiple.is_finite() or multiple <= 0 or abs(multiple.adjusted()) > 18:
        raise RequestError(f"{where}: multipleOf must be a number above 0 and of ordinary size, got {value!r:.80}")
    return multiple


def _check_multiples(multiples: list[Decimal], *, is_combined: bool) -> None:
    """A multiple costs a state for each remainder; several that hold at once cost those of their common multiple."""
    groups = [multiples] if is_combined else [[multiple] for multiple in multiples]
    for group in groups:
        unit = min((int(multiple.normalize().as_tuple().exponent) for multiple in group), default=0)
        common = math.lcm(*(int(multiple.scaleb(-unit)) for multiple in group))
        if common > _MAX_MULTIPLE:
            raise RequestError(
                f"multipleOf {', '.join(map(str, group[:8]))} costs too much: as whole numbers, their least common "
                f"multiple must not exceed {_MAX_MULTIPLE}; leave multipleOf out"
            )


def _keys(value: Any) -> list[str]:
    return list(value) if isinstance(value, dict) else []
