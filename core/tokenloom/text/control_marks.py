"""Marks that keep control strings of a user's text from being taken for the template's own.

A *mark* is a private-use character that occurs nowhere in the input. Before the template runs, the first character of
every control string in the user's text is replaced by the mark that stands for it; whatever is whole afterwards came
from the template. The marks are turned back into their characters once the control tokens are sorted out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import final

__all__ = ["ControlMarks", "ControlStrings"]

_MARKS = range(0xF0002, 0xFFFFE)


@final
class ControlMarks:
    """One mark for each character that a control string can begin with.

    Args:
        first_chars: these characters.
        texts: everything that the marks must not occur in, neither plain nor in JSON's escaped form.
    """

    def __init__(self, first_chars: Iterable[str], texts: Iterable[str]) -> None:
        joined = "".join(texts)
        unused = (char for char in map(chr, _MARKS) if char not in joined and _escaped(char) not in joined)
        self._mark_of = {char: next(unused) for char in sorted(set(first_chars))}

    def mark_of(self, char: str) -> str:
        """Returns the mark that stands for `char`."""
        return self._mark_of[char]

    def restored(self, text: str) -> str:
        """Returns `text` with every mark turned back, also where a template wrote it as ASCII-only JSON."""
        for char, mark in self._mark_of.items():
            text = text.replace(mark, char).replace(_escaped(mark), _escaped(char))
        return text


@final
class ControlStrings:
    """Finds control strings, and what could become one, in a user's text."""

    def __init__(self, strings: Iterable[str]) -> None:
        longest_first = sorted(set(strings), key=len, reverse=True)
        alternatives = "|".join(map(re.escape, longest_first)) or r"(?!)"
        self._starts = re.compile(f"(?={alternatives}).", re.DOTALL)
        self._first_chars = {string[0] for string in longest_first}
        self._prefixes = {string[:end] for string in longest_first for end in range(1, len(string))}
        self._max_prefix = max(map(len, self._prefixes), default=0)

    def are_risked_by(self, text: str) -> bool:
        """Whether `text` spells a control string, or its end could become one with the text that follows."""
        return self._starts.search(text) is not None or bool(self._open_ends(text))

    def marks(self, texts: Iterable[str]) -> ControlMarks:
        """Returns marks that occur in none of `texts`."""
        return ControlMarks(self._first_chars, texts)

    def broken(self, text: str, marks: ControlMarks) -> str:
        """Returns `text`, of the same length, in which no control string is whole and none can become so."""
        starts = {match.start() for match in self._starts.finditer(text)} | self._open_ends(text)
        chars = list(text)
        for start in starts:
            chars[start] = marks.mark_of(text[start])
        return "".join(chars)

    def _open_ends(self, text: str) -> set[int]:
        """Positions from which the rest of `text` is the beginning of a control string; templates may strip the end."""
        stripped = text.rstrip()
        return {
            start
            for ending in {text, stripped}
            for start in range(max(0, len(ending) - self._max_prefix), len(ending))
            if ending[start:] in self._prefixes
        }


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1]
