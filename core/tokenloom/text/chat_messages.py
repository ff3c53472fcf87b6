"""The messages of a conversation as callers send them: checked, and copied so that a template cannot reach them."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from tokenloom.errors import RequestError

__all__ = ["checked_messages", "map_strings", "strings_in"]


def checked_messages(messages: object) -> list[dict[str, Any]]:
    """Checks a conversation and returns a copy of it in which `content` is text.

    Each message is a mapping with `role` (a string) and `content`: a string, a list of `{"type": "text", "text": ...}`
    parts (joined with line breaks), or nothing where the message carries `tool_calls`. Other keys pass through, except
    those that are null: templates know missing keys, but write null as "None". What the model thought is found under
    each of its usual names.

    Raises:
        RequestError: naming the message and the field at fault (also as `param`).
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        _refuse("messages", f"expected a list of messages, got {type(messages).__name__}")
    if not messages:
        _refuse("messages", "the list is empty; expected at least one message")
    return [_checked_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _checked_message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        _refuse(where, f"expected an object with 'role' and 'content', got {type(message).__name__}")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        _refuse(f"{where}.role", _found(message, "role") + "expected a string such as 'system', 'user' or 'assistant'")
    fields = {**{key: value for key, value in message.items() if value is not None}, **_reasoning(message)}
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return fields
    if isinstance(content, list):
        content = "\n".join(_part_text(part, f"{where}.content[{index}]") for index, part in enumerate(content))
    if not isinstance(content, str):
        _refuse(f"{where}.content", _found(message, "content") + "expected a string or a list of text parts")
    return {**fields, "content": content}


def _reasoning(message: Mapping[Any, Any]) -> dict[str, Any]:
    """What the model thought, under the names that templates read it by; callers use any of three."""
    names = ("reasoning_content", "thinking", "reasoning")
    thought = next((message[name] for name in names if message.get(name) is not None), None)
    if thought is None:
        return {}
    thinking = message.get("thinking")
    return {"reasoning_content": thought, "thinking": thought if thinking is None else thinking}


def _part_text(part: object, where: str) -> str:
    if not isinstance(part, Mapping):
        _refuse(where, f"expected an object with 'type' and 'text', got {type(part).__name__}")
    if part.get("type") != "text":
        _refuse(f"{where}.type", _found(part, "type") + "only 'text' parts are supported")
    text = part.get("text")
    if not isinstance(text, str):
        _refuse(f"{where}.text", _found(part, "text") + "expected a string")
    return text


_REPR = reprlib.Repr()  # for values that can be long, or nested without end
_REPR.maxstring = _REPR.maxother = 100


def _found(fields: Mapping[Any, Any], name: str) -> str:
    return f"got {_REPR.repr(fields[name])}; " if name in fields else "is missing; "


def _refuse(where: str, problem: str) -> NoReturn:
    raise RequestError(f"{where}: {problem}", param=where)


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Returns a deep copy of JSON-like `value` with `change` applied to every string in it, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {map_strings(key, change): map_strings(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [map_strings(item, change) for item in value]
    return value


def strings_in(value: Any) -> Iterator[str]:
    """Yields every string of JSON-like `value`, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings_in(key)
            yield from strings_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from strings_in(item)
