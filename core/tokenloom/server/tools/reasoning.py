"""Thoughts between `<think>` and `</think>` at the beginning of a reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tokenloom.server.tools.interface import ContentDelta, ReasoningDelta, ReasoningParser
from tokenloom.server.tools.marks import SPACE, MarkFinder, SpaceHolder

__all__ = ["THINK_CLOSE", "THINK_OPEN", "ThinkParser"]

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"


@final
class ThinkParser(ReasoningParser):
    """White space next to a mark belongs to it. Thoughts that never end make the whole reply; marks behind are content.

    Args:
        starts_inside: the prompt opened the thoughts, so the reply begins in the middle of them; a mark that opens them
            once more is left out.
    """

    def __init__(self, *, starts_inside: bool) -> None:
        self._starts_inside = starts_inside
        self._close = MarkFinder([THINK_CLOSE])
        self._thoughts = SpaceHolder()
        self._buffer = ""
        self._deltas: list[ReasoningDelta | ContentDelta] = []
        self._step = self._at_start
        if starts_inside:
            self._thoughts.mark()

    def push(self, text: str) -> Sequence[ReasoningDelta | ContentDelta]:
        self._buffer += text
        while self._step():
            pass
        return self._take_deltas()

    def finish(self) -> Sequence[ReasoningDelta | ContentDelta]:
        if self._step == self._in_content or not (self._starts_inside or self._step == self._inside):
            self._show_content(self._buffer)
        else:
            self._show_thoughts(self._thoughts.push(self._buffer) + self._thoughts.flush())
        return self._take_deltas()

    def _at_start(self) -> bool:
        start = self._buffer.lstrip(SPACE)
        if THINK_OPEN.startswith(start[: len(THINK_OPEN)]):
            if len(start) < len(THINK_OPEN):
                return False
            self._buffer = start[len(THINK_OPEN) :]
            self._thoughts.mark()
            self._step = self._inside
        else:
            self._step = self._inside if self._starts_inside else self._in_content
        return True

    def _inside(self) -> bool:
        before, mark, self._buffer = self._close.split(self._buffer)
        self._show_thoughts(self._thoughts.push(before))
        if mark is None:
            return False
        self._thoughts.mark()
        self._step = self._behind
        return True

    def _behind(self) -> bool:
        self._buffer = self._buffer.lstrip(SPACE)
        if not self._buffer:
            return False
        self._step = self._in_content
        return True

    def _in_content(self) -> bool:
        self._show_content(self._buffer)
        self._buffer = ""
        return False

    def _show_thoughts(self, text: str) -> None:
        if text:
            self._deltas.append(ReasoningDelta(text))

    def _show_content(self, text: str) -> None:
        if text:
            self._deltas.append(ContentDelta(text))

    def _take_deltas(self) -> list[ReasoningDelta | ContentDelta]:
        deltas, self._deltas = self._deltas, []
        return deltas
