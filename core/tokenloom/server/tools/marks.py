"""Marks in text that arrives in pieces: found whole, never shown in part; white space beside them goes with them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import final

__all__ = ["SPACE", "MarkFinder", "SpaceHolder"]

SPACE = " \t\r\n"


@final
class MarkFinder:
    """Looks for the first of some marks."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._pattern = re.compile("|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True)))
        self._prefixes = {mark[:end] for mark in marks for end in range(1, len(mark))}
        self._max_prefix = max(map(len, self._prefixes), default=0)

    def split(self, text: str) -> tuple[str, str | None, str]:
        """Returns the text before the first mark, the mark, and the text behind it.

        Without a mark: the text that is certain to hold none of one, None, and the end that may become one.
        """
        found = self._pattern.search(text)
        if found is not None:
            return text[: found.start()], found[0], text[found.end() :]
        start = next(
            (i for i in range(max(0, len(text) - self._max_prefix), len(text)) if text[i:] in self._prefixes), len(text)
        )
        return text[:start], None, text[start:]


@final
class SpaceHolder:
    """Text with marks in it that are not shown, nor the white space beside them.

    White space at the end of the text is held back until what follows is known. Where there is text on both sides of
    marks, the first white space between them stays, so that no words run into each other.
    """

    def __init__(self) -> None:
        self._held = ""
        self._behind = ""  # white space behind the last mark
        self._is_behind_mark = False
        self._has_shown = False

    def push(self, text: str) -> str:
        """Takes more text; returns what may be shown now."""
        if self._is_behind_mark:
            rest = text.lstrip(SPACE)
            self._behind += text[: len(text) - len(rest)]
            if not rest:
                return ""
            self._end_of_marks()
            text = rest
        text = self._held + text
        shown = text.rstrip(SPACE)
        self._held = text[len(shown) :]
        self._has_shown = self._has_shown or bool(shown)
        return shown

    def mark(self) -> None:
        """A mark stands here."""
        self._end_of_marks()
        self._is_behind_mark = True

    def flush(self) -> str:
        """The end of the text: returns what was held back."""
        held, self._held = self._held, ""
        return "" if self._is_behind_mark else held

    def _end_of_marks(self) -> None:
        if self._is_behind_mark:
            self._held = (self._held or self._behind) if self._has_shown else ""
        self._behind, self._is_behind_mark = "", False
