"""What pydantic found wrong in a field, in the words of an override (or of a keyword in Python)."""

from __future__ import annotations

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tokenloom.compose.config_keys import describe_field
from tokenloom.compose.overrides import value_word
from tokenloom.settings_validation import alternatives, fault_text

__all__ = ["field_fault"]

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
    if isinstance(value, str) and value.lower() == "none" and type(None) in alternatives(info.annotation):
        text += f"; write {'None without quotes' if is_keyword else 'null'} for none"
    return text
