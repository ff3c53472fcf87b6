"""Calls written as JSON objects: between marks (Hermes, Qwen), or as the whole reply (Llama 3)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import final

from tokenloom.server.tools.call_object import CallObject
from tokenloom.server.tools.interface import ContentDelta, ToolCallArguments, ToolCallStart, ToolDelta, ToolParser
from tokenloom.server.tools.marks import SPACE, MarkFinder, SpaceHolder

__all__ = ["HERMES", "LLAMA3", "JsonCallParser", "JsonCallStyle"]


@dataclass(frozen=True, slots=True)
class JsonCallStyle:
    """How a family of models writes calls.

    Attributes:
        open_mark: calls may follow it, one object after another.
        close_mark: ends them; None for none.
        starts_open: calls may also stand at the very beginning of the reply, without a mark.
        separators: may stand between two objects, beside white space.
        takes_bare_names: an object with a name and no arguments is a call, whatever the name; else only for a tool that
            was offered.
    """

    open_mark: str
    close_mark: str | None
    starts_open: bool
    separators: str
    takes_bare_names: bool


HERMES = JsonCallStyle("<tool_call>", "</tool_call>", starts_open=False, separators="", takes_bare_names=True)
LLAMA3 = JsonCallStyle("<|python_tag|>", None, starts_open=True, separators=";,", takes_bare_names=False)


@final
class JsonCallParser(ToolParser):
    """A call is certain once its name is known and its arguments begin; then they are passed on as they come.

    What proves to be no call before that (no JSON object, no name, cut off) comes out as content with its marks. What
    goes wrong behind it stays in the arguments as the model wrote it, and what stands between them and the end mark is
    content. A reply that ends inside an end mark leaves that out; one that ends inside any other mark shows it.
    """

    def __init__(self, style: JsonCallStyle, tool_names: Collection[str], make_id: Callable[[], str]) -> None:
        """`tool_names`: the tools that were offered; `make_id` draws the id of each call."""
        self._style = style
        self._tool_names = frozenset(tool_names)
        self._make_id = make_id
        self._opening = MarkFinder([style.open_mark])
        self._either = MarkFinder([mark for mark in (style.open_mark, style.close_mark) if mark is not None])
        self._content = SpaceHolder()
        self._deltas: list[ToolDelta] = []
        self._num_calls = 0
        self._buffer = ""  # not looked at yet
        self._lead = ""  # since the last mark or call; content unless a call follows
        self._call = self._new_call()
        self._awaits_close = False
        self._step = self._opened if style.starts_open else self._in_content

    def push(self, text: str) -> Sequence[ToolDelta]:
        self._buffer += text
        while self._step():
            pass
        return self._take_deltas()

    def finish(self) -> Sequence[ToolDelta]:
        if self._step == self._in_object and self._call.name is None:
            self._show(self._lead + self._call.raw)
        elif self._step == self._behind:
            self._show(self._lead)
        elif self._step != self._in_object:
            self._show(self._lead + self._buffer)
        self._show_now(self._content.flush())
        return self._take_deltas()

    def _in_content(self) -> bool:
        finder = self._either if self._awaits_close else self._opening
        before, mark, self._buffer = finder.split(self._buffer)
        self._show(before)
        if mark is None:
            return False
        if mark == self._style.open_mark:
            self._lead = mark
            self._step = self._opened
        else:
            self._content.mark()
        self._awaits_close = False
        return True

    def _opened(self) -> bool:
        """Behind a mark: only a JSON object makes a call."""
        if not self._skip(SPACE):
            return False
        if self._buffer[0] == "{":
            self._call = self._new_call()
            self._step = self._in_object
        else:
            self._give_back(self._lead)
        return True

    def _in_object(self) -> bool:
        call, was_certain = self._call, self._call.name is not None
        num_taken = 0
        for char in self._buffer:
            num_taken += call.feed(char)
            if call.is_over:
                break
        self._buffer = self._buffer[num_taken:]
        if call.name is not None and not was_certain:
            self._content.mark()
            self._lead = ""
            self._deltas.append(ToolCallStart(self._num_calls, self._make_id(), call.name))
            self._num_calls += 1
        arguments = call.take_arguments()
        if arguments:
            self._deltas.append(ToolCallArguments(self._num_calls - 1, arguments))
        if call.is_broken:
            self._give_back(self._lead + call.raw)
        elif call.is_over:
            self._awaits_close = self._style.close_mark is not None
            self._step = self._behind
        return call.is_over

    def _behind(self) -> bool:
        """Behind a call: another one, or the end mark; everything else is content."""
        if not self._skip(SPACE + self._style.separators):
            return False
        close = self._style.close_mark
        if self._buffer[0] == "{":
            self._call = self._new_call()
            self._step = self._in_object
        elif close is not None and close.startswith(self._buffer[: len(close)]):
            if len(self._buffer) < len(close):
                return False
            self._buffer = self._buffer[len(close) :]
            self._awaits_close = False
            self._give_back("")
        else:
            self._give_back(self._lead)
        return True

    def _skip(self, chars: str) -> bool:
        """Moves such characters to the lead; returns whether others follow."""
        rest = self._buffer.lstrip(chars)
        self._lead += self._buffer[: len(self._buffer) - len(rest)]
        self._buffer = rest
        return bool(rest)

    def _give_back(self, text: str) -> None:
        self._show(text)
        self._lead = ""
        self._step = self._in_content

    def _show(self, text: str) -> None:
        self._show_now(self._content.push(text))

    def _show_now(self, text: str) -> None:
        if text:
            self._deltas.append(ContentDelta(text))

    def _take_deltas(self) -> list[ToolDelta]:
        deltas, self._deltas = self._deltas, []
        return deltas

    def _new_call(self) -> CallObject:
        return CallObject(lambda name: self._style.takes_bare_names or name in self._tool_names)
