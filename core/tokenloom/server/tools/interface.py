"""A model's reply taken apart while it is written: what it thought, what it answers, which tools it calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "ContentDelta",
    "ReasoningDelta",
    "ReasoningParser",
    "ReplyDelta",
    "ToolCallArguments",
    "ToolCallStart",
    "ToolDelta",
    "ToolParser",
]


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """More of the answer; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of what the model thought; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call begins.

    Attributes:
        index: its place among the reply's calls, from 0; they come in order.
        call_id: unique, `call_...`.
        name: of the tool, as the model wrote it; it may be none of those that were offered.
    """

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """More of a call's arguments, behind its start; never empty. All fragments joined are what the model wrote."""

    index: int
    fragment: str


ToolDelta = ContentDelta | ToolCallStart | ToolCallArguments
ReplyDelta = ReasoningDelta | ToolDelta


class ToolParser(ABC):
    """Finds calls of tools in one reply. Pure: what comes out depends on the text alone (and on ids that are drawn).

    All deltas joined are the same however the text was cut into pieces. Nothing is lost: text that begins like a call
    and is none comes out as content, with its marks. White space around calls is left out, except for the first one
    between the text on both sides.
    """

    @abstractmethod
    def push(self, text: str) -> Sequence[ToolDelta]:
        """Takes the next piece of the reply; returns what is certain now."""

    @abstractmethod
    def finish(self) -> Sequence[ToolDelta]:
        """Ends the reply, wherever it was cut off; called once."""


class ReasoningParser(ABC):
    """Splits one reply into the thoughts at its beginning and the answer; pure as a `ToolParser` is."""

    @abstractmethod
    def push(self, text: str) -> Sequence[ReasoningDelta | ContentDelta]:
        """Takes the next piece of the reply; returns what is certain now."""

    @abstractmethod
    def finish(self) -> Sequence[ReasoningDelta | ContentDelta]:
        """Ends the reply, wherever it was cut off; called once."""
