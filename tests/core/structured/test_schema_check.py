"""What a JSON schema must not hold: unknown words where keywords stand, and what cannot be kept."""

from __future__ import annotations

from typing import Any

import pytest

from tokenloom.errors import RequestError
from tokenloom.structured.schema_check import check_schema

PATTERNS: list[dict[str, Any]] = [{"type": "string", "pattern": f"a{index}"} for index in range(9)]
KEYS: list[dict[str, Any]] = [{"patternProperties": {f"^{name}{i}$": {} for i in range(60)}} for name in "ab"]


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"typ": "string"}, r"schema: 'typ' is no keyword .*Did you mean 'type'"),
        ({"properties": {"a": {"maxlength": 3}}}, r"schema\.properties\.a: 'maxlength' .*Did you mean 'maxLength'"),
        ({"anyOf": [{}, {"requird": []}]}, r"schema\.anyOf\[1\]: 'requird'.*Did you mean 'required'"),
        ({"items": {"nullable": True}}, r"schema\.items: 'nullable' .*begins with 'x-'"),
        ({"items": [{"nope": 1}]}, r"schema\.items\[0\]: 'nope'"),
        ({"$defs": {"a": {"additionalProperties": {"nope": 1}}}}, r"\$defs\.a\.additionalProperties: 'nope'"),
        ({"type": "object", "minProperties": 2}, r"minProperties=2 cannot be kept: at most 1 different"),
        ({"minProperties": 4, "required": ["a", "b"]}, r"minProperties=4 cannot be kept: at most 3 different"),
        ({"patternProperties": {"a" * 5000: {}}}, "longer than the 4096"),
        ({"multipleOf": 0}, "multipleOf must be a number above 0"),
        ({"multipleOf": True}, "multipleOf must be a number above 0"),
        ({"multipleOf": "3"}, "multipleOf must be a number above 0"),
        ({"multipleOf": 1e-300}, "multipleOf must be a number above 0 and of ordinary size"),
        ({"multipleOf": 10_001}, "multipleOf 10001 costs too much"),
        ({"allOf": [{"multipleOf": 0.01}, {"multipleOf": 997}]}, "multipleOf .*costs too much"),
        ({"const": 7.3356432243947145}, "7.3356432243947145 has more than the 15 digits"),
        ({"items": {"enum": [1, {"a": [10**40]}]}}, r"schema\.items: an integer of 133 bits is too large"),
        ({"minimum": -1e200}, "has more than the 15 digits"),
        ({"properties": {"a": {"allOf": PATTERNS}}}, r"schema\.properties\.a: 9 patterns and formats .*at most 8 may"),
        ({"format": "uri", "allOf": PATTERNS[:8]}, "schema: 9 patterns and formats"),
        ({"allOf": [{"allOf": PATTERNS[:5]}, {"allOf": PATTERNS[5:]}]}, "schema: 9 patterns and formats"),
        (
            {"$ref": "#/$defs/x~1y/allOf/0", "$defs": {"x/y": {"allOf": [{"allOf": PATTERNS[1:]}]}}, **PATTERNS[0]},
            "schema: 9 patterns and formats",
        ),
        ({"patternProperties": {f"^b{i}$": {} for i in range(101)}}, "schema: 101 patterns in .*at most 100 may"),
        ({"items": {"allOf": KEYS}}, r"schema\.items: 120 patterns in 'patternProperties'"),
        ({"allOf": [{}] * 100 + [{"title": str(i)} for i in range(100)]}, "more than 100 schemas hold here"),
    ],
)
def test_refusals_name_the_place(schema: dict[str, Any], problem: str) -> None:
    with pytest.raises(RequestError, match=problem):
        check_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"properties": {"typ": {}, "nullable": {"type": "null"}}, "required": ["typ"]},
        {"const": {"typ": 1}, "enum": [{"typ": 1}], "default": {"typ": 1}, "examples": [{"typ": 1}]},
        {"$defs": {"typ": {"title": "t", "description": "d"}}, "definitions": {"nope": True}},
        {"x-mine": {"typ": 1}, "$schema": "s", "$id": "i", "$comment": "c", "deprecated": True},
        {"discriminator": {"propertyName": "k"}, "oneOf": [{"const": 1}]},
        {"minProperties": 3, "required": ["a", "b"]},
        {"properties": {"a": {"multipleOf": 1e-9}, "b": {"multipleOf": 9973}}},
        {"allOf": [{"multipleOf": 0.5}, {"multipleOf": 15}]},
        {"allOf": PATTERNS[:8]},
        {"anyOf": PATTERNS, "properties": {str(index): item for index, item in enumerate(PATTERNS)}},
        {"properties": {name: {"$ref": "#/$defs/a"} for name in "abcdefghijk"}, "$defs": {"a": PATTERNS[0]}},
        {"anyOf": KEYS, "$ref": "#", "allOf": [{"$ref": "#/no/where"}, {"$ref": "#/anyOf/7"}, {"$ref": 3}]},
        {"properties": ["broken"], "anyOf": "broken", "items": 3, "required": "broken"},
    ],
)
def test_ordinary_schemas_pass(schema: Any) -> None:
    """What is merely malformed is left to the library, which says so."""
    check_schema(schema)
