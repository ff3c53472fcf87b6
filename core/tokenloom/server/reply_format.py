"""How the served model writes thoughts and tool calls: chosen once, when its tokenizer is there."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, final

from tokenloom.server.settings import ServerSettings
from tokenloom.server.tools import (
    ReplyParser,
    build_reasoning_parser,
    build_tool_parser,
    choose_reasoning_parser,
    choose_tool_parser,
    marks_of,
    special_marks,
)
from tokenloom.server.tools.reasoning import THINK_CLOSE, THINK_OPEN
from tokenloom.text.tokenizer import Tokenizer

__all__ = ["ReplyFormat", "choose_reply_format"]

_log = logging.getLogger(__name__)
_NUM_LAST_TOKENS = 32
"""What a template writes behind the last message is shorter than this."""


@final
@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """The model's parsers.

    Attributes:
        tool_parser: its name; "none" where calls cannot be told from text.
        tool_reason: why that one.
        reasoning_parser: its name.
        special_marks: marks of the parsers that are special tokens, which the text must show for them.
    """

    tool_parser: str
    tool_reason: str
    reasoning_parser: str
    special_marks: frozenset[str]

    def ending(self, tokenizer: Tokenizer, prompt: list[int]) -> str:
        """The end of what the model saw, where its template may have opened or closed the thoughts; "" if it cannot."""
        if self.reasoning_parser == "none":
            return ""
        return tokenizer.decode(prompt[-_NUM_LAST_TOKENS:], skip_special_tokens=False).rstrip()

    def parser(self, ending: str, tool_names: Collection[str]) -> ReplyParser | None:
        """A parser for one reply; None where the text is the reply. Without tools, calls are left alone."""
        tools = build_tool_parser(self.tool_parser, tool_names) if tool_names else None
        reasoning = build_reasoning_parser(self.reasoning_parser, ending)
        return None if tools is None and reasoning is None else ReplyParser(reasoning, tools)

    def thoughts(self, ending: str) -> Literal["none", "begun", "possible"]:
        """What may come before the part of a reply that a grammar constrains; see `GrammarSpec`."""
        if self.reasoning_parser == "none" or ending.endswith(THINK_CLOSE):
            return "none"
        return "begun" if ending.endswith(THINK_OPEN) or self.reasoning_parser == "deepseek_r1" else "possible"


def choose_reply_format(settings: ServerSettings, tokenizer: Tokenizer) -> ReplyFormat:
    """The parsers that the settings name, or that fit the chat template."""
    tools = choose_tool_parser(settings.tool_parser, tokenizer.chat_template)
    reasoning = choose_reasoning_parser(settings.reasoning_parser, tokenizer.chat_template)
    _log.info("tool parser %s: %s; reasoning parser %s: %s", tools.name, tools.reason, reasoning.name, reasoning.reason)
    marks = special_marks(marks_of(tools.name, reasoning.name), tokenizer)
    return ReplyFormat(tools.name, tools.reason, reasoning.name, marks)
