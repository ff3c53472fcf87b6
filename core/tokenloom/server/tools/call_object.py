"""Reads one call written as a JSON object, `{"name": ..., "arguments": {...}}`, character by character."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import final

__all__ = ["CallObject"]

_SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")


@final
class CallObject:
    """One object as it arrives, `{` included. Says what it knows; never looks back.

    It checks no more than the frame: strings, brackets, and the commas and colons of the object itself. So arguments
    pass as they were written, right or wrong. A string in place of the arguments stands for the text in it, and none at
    all (or null) for `{}`. Other keys say nothing to a client and are left out.

    Args:
        is_call: told the name, says whether an object without arguments is a call.

    Attributes:
        name: of the tool, once the call is certain: its name is known and its arguments have begun.
        is_over: the object ended, in its last `}` or before a character that cannot follow.
        is_broken: it is over, and no call.
    """

    def __init__(self, is_call: Callable[[str], bool]) -> None:
        self.name: str | None = None
        self.is_over = False
        self.is_broken = False
        self._is_call = is_call
        self._raw: list[str] = []
        self._step: Callable[[str], bool] = self._open
        self._key = ""
        self._value = ""
        self._brackets: list[str] = []
        self._is_in_string = self._is_escaped = False
        self._known_name: str | None = None
        self._has_arguments = False
        self._arguments: list[str] = []

    @property
    def raw(self) -> str:
        """All text so far, as long as the call is not certain."""
        return "".join(self._raw)

    def feed(self, char: str) -> bool:
        """Takes the next character; returns False if the object ended before it."""
        is_taken = self._step(char)
        if not is_taken:
            self._end()
        elif self.name is None:
            self._raw.append(char)
        return is_taken

    def take_arguments(self) -> str:
        """Returns the arguments since the last time; empty as long as the call is not certain."""
        if self.name is None:
            return ""
        arguments = "".join(self._arguments)
        self._arguments.clear()
        return arguments

    def _open(self, char: str) -> bool:
        self._step = self._before_key
        return char == "{"

    def _before_key(self, char: str) -> bool:
        if char == "}":
            self._end()
            return True
        if char == '"':
            self._value, self._is_in_string = char, True
            self._step = self._in_key
            return True
        return char in _SPACE or char == ","

    def _in_key(self, char: str) -> bool:
        self._value += char
        if self._ends_string(char):
            self._key = _decoded(self._value)
            self._step = self._before_colon
        return True

    def _before_colon(self, char: str) -> bool:
        if char == ":":
            self._step = self._before_value
            return True
        return char in _SPACE

    def _before_value(self, char: str) -> bool:
        if char in _SPACE:
            return True
        if char in ",:]}":
            return False
        self._value, self._brackets = "", []
        self._is_in_string = False
        self._step = self._in_string if char == '"' else self._in_brackets if char in "{[" else self._in_word
        return self._step(char)

    def _in_string(self, char: str) -> bool:
        self._value += char
        if len(self._value) == 1:
            self._is_in_string = True
        elif self._ends_string(char):
            self._take_value(_decoded(self._value))
        return True

    def _in_brackets(self, char: str) -> bool:
        self._stream(char)
        if self._is_in_string:
            self._ends_string(char)
        elif char == '"':
            self._is_in_string = True
        elif char in "{[":
            self._brackets.append(char)
        elif char in "}]":
            self._brackets.pop()
            if not self._brackets:
                self._take_value(None)
        return True

    def _in_word(self, char: str) -> bool:
        if char in _SPACE or char in ",:}]{[":
            self._take_value(None if self._value == "null" else self._value)
            return self._step(char)
        self._value += char
        return True

    def _after_value(self, char: str) -> bool:
        if char == "}":
            self._end()
            return True
        if char == ",":
            self._step = self._before_key
            return True
        return char in _SPACE

    def _ends_string(self, char: str) -> bool:
        """Whether `char`, inside a string, ends it."""
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._is_in_string = False
            return True
        return False

    def _stream(self, char: str) -> None:
        """More of a value in brackets; arguments are passed on at once."""
        if self._is_arguments:
            self._arguments.append(char)
            self.name = self._known_name

    def _take_value(self, value: str | None) -> None:
        """A value is complete: text of a string or a word; None for null and for what was streamed."""
        self._step = self._after_value
        if self._is_arguments:
            self._arguments += [value] if value else []
            self._has_arguments = True
        elif self._key == "name" and self._known_name is None and value and self._value.startswith('"'):
            self._known_name = value
        if self._has_arguments and self._arguments:
            self.name = self._known_name

    @property
    def _is_arguments(self) -> bool:
        return self._key in _ARGUMENTS and not self._has_arguments

    def _end(self) -> None:
        self.is_over = True
        name = self._known_name
        if self.name is None and name is not None and (self._has_arguments or self._is_call(name)):
            self.name = name
            self._arguments = self._arguments or ["{}"]
        self.is_broken = self.name is None


def _decoded(string: str) -> str:
    """The text of a JSON string with its quotes; what is none stays as it is."""
    try:
        text: str = json.loads(string, strict=False)
    except ValueError:
        return string[1:-1]
    return text
