"""Bounds how much of a JSON schema holds at one place at once: what meets there is worked into one automaton.

The library gives up an intersection of patterns that it cannot solve only after a time that doubles with each of them,
and compares the keys of `patternProperties` with all others. How long compiling takes in all, `CompileTrial` bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from tokenloom.errors import RequestError

__all__ = ["check_place"]

_MAX_SCHEMAS = 100
_MAX_PATTERNS = 8
_MAX_PATTERN_KEYS = 100


def check_place(schema: Any, node: dict[str, Any], where: str) -> None:
    """Checks what holds together with `node`: itself, and by way of `allOf` and `$ref` others.

    Args:
        schema: the whole, in which references point.
        node: a schema in it.
        where: its place.

    Raises:
        RequestError: too much meets.
    """
    num_patterns = num_keys = 0
    for number, met in enumerate(_met_at(schema, node)):
        keys = met.get("patternProperties")
        num_keys += len(keys) if isinstance(keys, dict) else 0
        num_patterns += ("pattern" in met) + ("format" in met)
        if number >= _MAX_SCHEMAS:
            raise RequestError(
                f"{where}: more than {_MAX_SCHEMAS} schemas hold here at once, by 'allOf' and '$ref'; write fewer"
            )
    if num_patterns > _MAX_PATTERNS:
        raise RequestError(
            f"{where}: {num_patterns} patterns and formats must match here at once, by 'allOf' and '$ref'; at most "
            f"{_MAX_PATTERNS} may; write them as one pattern"
        )
    if num_keys > _MAX_PATTERN_KEYS:
        raise RequestError(
            f"{where}: {num_keys} patterns in 'patternProperties' hold here, at most {_MAX_PATTERN_KEYS} may; name the "
            "keys in 'properties', or write several patterns as one"
        )


def _met_at(schema: Any, node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """`node` and what holds where it does, each once."""
    waiting: list[Any] = [node]
    seen: set[int] = set()
    while waiting:
        met = waiting.pop()
        if not isinstance(met, dict) or id(met) in seen:
            continue
        seen.add(id(met))
        yield met
        more = met.get("allOf")
        waiting += more if isinstance(more, list) else []
        waiting.append(_target(schema, met.get("$ref")))


def _target(schema: Any, reference: object) -> Any:
    """What a reference within the schema points at; None for others, which the library refuses."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = schema
    for part in reference[1:].split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and len(key) < 6 and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found
