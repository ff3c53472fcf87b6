"""What pydantic found wrong in a field, in the words of an override (or of a keyword in Python)."""

from __future__ import annotations

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tokenloom.compose.config_keys import describe_field, takes_text
from tokenloom.compose.overrides import value_word
from tokenloom.settings_validation import alternatives, fault_text

__all__ = ["field_fault", "none_as_text"]

_CONTAINERS = {"dict_type": "mapping", "mapping_type": "mapping", "tuple_type": "list", "list_type": "list"}
"""What pydantic calls dictionary or tuple is written otherwise in an override."""


def field_fault(key: str, info: FieldInfo, details: ErrorDetails, *, is_keyword: bool) -> str:
    """The fault in words, with how to write the value where that is not plain.

    Args:
        key: of the field; what is wrong may be a part of its value.
        info: the field.
        details: the fault.
        is_keyword: whether the value was written in Python.
    """
    location, text, value = details["loc"], fault_text(details), details["input"]
    if location[-1] == "[key]":
        return f"its key {location[-2]} {text}"
    if details["type"] in _CONTAINERS:
        text = f"must be a {describe_field(key, info).type if len(location) == 1 else _CONTAINERS[details['type']]}"
        text += f", as in {key}={value_word(info.examples[0])}" if info.examples else ""
    # Infinity is how somebody who knows no null switches a limit off.
    is_infinite = details["type"] == "finite_number" and len(location) == 1 and _allows_none(info)
    return f"{text}; {_NONE_ADVICE[is_keyword]}" if is_infinite or _means_none(info, value) else text


def none_as_text(info: FieldInfo, value: object, *, is_keyword: bool) -> str | None:
    """The fault of a word such as None where text may be left out: pydantic would take it for a file of that name."""
    if not (_means_none(info, value) and takes_text(info)):
        return None
    return f"{_NONE_ADVICE[is_keyword]}; a file of that name is ./{value}"


_NONE_ADVICE = {True: "write None without quotes for none", False: "write null for none"}


def _means_none(info: FieldInfo, value: object) -> bool:
    return isinstance(value, str) and value.lower() == "none" and _allows_none(info)


def _allows_none(info: FieldInfo) -> bool:
    return type(None) in alternatives(info.annotation)
