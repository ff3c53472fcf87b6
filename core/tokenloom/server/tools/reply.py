"""One reply through both parsers: thoughts are split off first, calls are looked for in what remains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from tokenloom.server.tools.interface import (
    ContentDelta,
    ReasoningDelta,
    ReasoningParser,
    ReplyDelta,
    ToolCallArguments,
    ToolCallStart,
    ToolParser,
)

__all__ = ["Reply", "ReplyParser", "ToolCall", "assemble", "parse_reply"]


@final
class ReplyParser:
    """The parser of one choice; None in place of a parser leaves its part out."""

    def __init__(self, reasoning: ReasoningParser | None = None, tools: ToolParser | None = None) -> None:
        self._reasoning = reasoning
        self._tools = tools

    def push(self, text: str) -> list[ReplyDelta]:
        """Takes the next piece of the reply; returns what is certain now."""
        if self._reasoning is None:
            return self._seen_by_tools(text)
        return self._without_thoughts(self._reasoning.push(text))

    def finish(self) -> list[ReplyDelta]:
        """Ends the reply, wherever it was cut off; called once."""
        deltas = [] if self._reasoning is None else self._without_thoughts(self._reasoning.finish())
        return deltas if self._tools is None else [*deltas, *self._tools.finish()]

    def _without_thoughts(self, split: Sequence[ReasoningDelta | ContentDelta]) -> list[ReplyDelta]:
        deltas: list[ReplyDelta] = []
        for delta in split:
            deltas += [delta] if isinstance(delta, ReasoningDelta) else self._seen_by_tools(delta.text)
        return deltas

    def _seen_by_tools(self, text: str) -> list[ReplyDelta]:
        if self._tools is not None:
            return list(self._tools.push(text))
        return [ContentDelta(text)] if text else []


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call; `arguments` is what the model wrote: JSON, if it wrote JSON."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply; empty strings where there is nothing."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]


def parse_reply(text: str, parser: ReplyParser) -> Reply:
    """Parses a reply that is there as a whole, with a parser that has seen nothing yet."""
    return assemble([*parser.push(text), *parser.finish()])


def assemble(deltas: Iterable[ReplyDelta]) -> Reply:
    """Joins the deltas of one reply."""
    content: list[str] = []
    reasoning: list[str] = []
    starts: list[ToolCallStart] = []
    arguments: list[list[str]] = []
    for delta in deltas:
        match delta:
            case ContentDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case ToolCallStart():
                starts.append(delta)
                arguments.append([])
            case ToolCallArguments(index, fragment):
                arguments[index].append(fragment)
    calls = [ToolCall(start.call_id, start.name, "".join(parts)) for start, parts in zip(starts, arguments)]
    return Reply("".join(content), "".join(reasoning), tuple(calls))
