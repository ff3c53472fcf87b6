"""Checks of single sampling values: each returns the value in the form it is stored in, or raises `RequestError`."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Set
from typing import Any, SupportsIndex

from tokenloom.errors import RequestError

__all__ = [
    "MAX_INT32",
    "check_bool",
    "check_int",
    "checked_biases",
    "checked_float",
    "checked_processors",
    "checked_strings",
    "checked_token_ids",
    "refusal",
]

MAX_INT32 = 2**31 - 1
_MAX_SHOWN = 500
"""Characters of a wrong value that a message repeats."""


def refusal(name: str, value: object, allowed: str, advice: str, part: str = "") -> RequestError:
    """The error for a field, or for a part of its value: its name, the value, what is allowed, what to try."""
    subject = f"{name}: {part}" if part else name
    return RequestError(f"{subject} must be {allowed}, got {_shown(value)}; try {advice}", param=name)


def checked_float(
    name: str, value: object, low: float, high: float, advice: str, *, low_is_open: bool = False, part: str = ""
) -> float:
    """A finite number in a range. NaN fails every comparison, infinities every range."""
    allowed = f"a finite number {'above' if low_is_open else 'from'} {low:g} {'up ' if low_is_open else ''}to {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise refusal(name, value, allowed, advice, part)
    # An int too large for a float is refused before conversion.
    if not low <= value <= high or (low_is_open and value == low):
        raise refusal(name, value, allowed, advice, part)
    return float(value)


def check_int(name: str, value: object, low: int, high: int, advice: str, part: str = "") -> None:
    """An integer in a range; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise refusal(name, value, f"an integer from {low} to {high}", advice, part)


def check_bool(name: str, value: object) -> None:
    """True or False."""
    if not isinstance(value, bool):
        raise refusal(name, value, "True or False", "True or False without quotes")


def checked_strings(name: str, value: object, advice: str) -> tuple[str, ...]:
    """One non-empty string, or a list of them."""
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, tuple | list) or not all(isinstance(item, str) and item for item in strings):
        raise refusal(name, value, "a non-empty string or a list of them", advice)
    return tuple(strings)


def checked_token_ids(name: str, value: object, advice: str, *, may_be_empty: bool = True) -> tuple[int, ...]:
    """A list of token ids; a range, or what numpy and torch make, will do. Whether the model has them is checked when
    the request is made."""
    ids = _items(value)
    if ids is None or not (ids or may_be_empty):
        raise refusal(name, value, f"a {'' if may_be_empty else 'non-empty '}list of token ids", advice)
    if not (set(map(type, ids)) <= {int} and min(ids, default=0) >= 0 and max(ids, default=0) <= MAX_INT32):
        for token_id in ids:
            check_int(name, token_id, 0, MAX_INT32, "ids of the model's own vocabulary", "each id")
    return ids


def checked_biases(name: str, value: object, limit: float) -> dict[int, float]:
    """A dictionary of numbers by token id; None is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise refusal(name, value, "a dictionary from token ids to numbers", "{50256: -100}, or None for no bias")
    biases: dict[int, float] = {}
    for token_id, bias in value.items():
        check_int(name, token_id, 0, MAX_INT32, "ids of the model's own vocabulary, as integers", "each token id")
        advice = f"-{limit:g} to make a token most unlikely"
        biases[token_id] = checked_float(name, bias, -limit, limit, advice, part=f"the number of token {token_id}")
    return biases


def checked_processors(name: str, value: object) -> dict[str, dict[str, Any]]:
    """A dictionary of settings by plugin name; None is an empty one, and None as settings takes the defaults.

    What a plugin makes of its settings is checked when the request is made.
    """
    advice = "{'no_repeat_ngram': {'size': 3}}, or None for no processor"
    allowed = "a dictionary from plugin names to their settings"
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise refusal(name, value, allowed, advice)
    found: dict[str, dict[str, Any]] = {}
    for plugin, settings in value.items():
        is_legal = settings is None or (isinstance(settings, Mapping) and all(isinstance(key, str) for key in settings))
        if not (isinstance(plugin, str) and plugin and is_legal):
            raise refusal(name, value, allowed, advice)
        found[plugin] = dict(settings or {})
    return found


def _items(value: object) -> tuple[Any, ...] | None:
    """What a list of numbers holds, whatever library made it; None of anything else."""
    if not isinstance(value, Collection) or isinstance(value, str | bytes | bytearray | Mapping | Set):
        return None
    if set(map(type, value)) <= {int}:
        # Long lists are common, and whatever looks at each of their items in Python is slow.
        return tuple(value)
    return tuple(_plain_int(item) for item in value)


def _plain_int(value: Any) -> Any:
    """An integer of another library as Python's own; anything else as it is, to be refused."""
    if type(value) is int or isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return value


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:
        # Python refuses to write integers of many thousand digits.
        return f"a {type(value).__name__} too long to show"
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
