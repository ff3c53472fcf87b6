"""Which tools a chat request offers, and which of them the model must call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from tokenloom.errors import RequestError
from tokenloom.grammar_spec import GrammarSpec
from tokenloom.server.chat_body import ChatBody, ToolChoice
from tokenloom.server.reply_format import ReplyFormat
from tokenloom.server.tools.tool_grammar import OfferedTool, tool_grammar

__all__ = ["ToolUse", "tool_use"]


@final
@dataclass(frozen=True, slots=True)
class ToolUse:
    """A request's tools.

    Attributes:
        offered: as the chat template gets them; empty where none may be called.
        must_call: the model has to call one.
        only: the one that it has to call; None leaves the choice.
        parallel: several calls are welcome.
    """

    offered: tuple[dict[str, Any], ...] = ()
    must_call: bool = False
    only: str | None = None
    parallel: bool = True

    @property
    def callable_names(self) -> tuple[str, ...]:
        """Names of the tools that calls are looked for of."""
        return tuple(tool["function"]["name"] for tool in self.offered)

    def check(self, reply_format: ReplyFormat, requested: GrammarSpec | None) -> None:
        """Refuses what cannot be.

        Args:
            reply_format: how the model writes calls.
            requested: structured output that the request asks for.

        Raises:
            RequestError: the model cannot call tools, or not with this output.
        """
        if not self.offered:
            return
        if reply_format.tool_parser == "none":
            raise RequestError(
                f"this model cannot call tools: {reply_format.tool_reason}; leave tools out, or name a parser with "
                "server.tool_parser",
                "tools",
            )
        if requested is not None:
            raise RequestError(
                "structured output and tools cannot be combined: a reply of that form could hold no call; use "
                "tool_choice='none', or leave one of them out",
                "response_format",
            )

    def grammar(self, reply_format: ReplyFormat) -> GrammarSpec | None:
        """The constraint that makes the model call; None where it need not.

        Raises:
            RequestError: a tool's parameters are no schema, or the model's way to call cannot be forced.
        """
        if not self.must_call:
            return None
        functions = [tool["function"] for tool in self.offered]
        tools = [
            OfferedTool(function["name"], function.get("parameters"))
            for function in functions
            if self.only in (None, function["name"])
        ]
        return tool_grammar(
            reply_format.tool_parser,
            tools,
            allows_several=self.parallel and self.only is None,
            special_tokens=reply_format.special_marks,
        )


def tool_use(body: ChatBody) -> ToolUse:
    """What a request says of tools.

    Raises:
        RequestError: it contradicts itself.
    """
    choice, tools = body.tool_choice, body.tools or []
    names = [tool.function.name for tool in tools]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise RequestError(f"tools: the name {double!r} is used twice", "tools")
    if not tools:
        if choice not in (None, "none", "auto"):
            raise RequestError("tool_choice needs tools to choose from; send them, or leave it out", "tool_choice")
        return ToolUse()
    if choice == "none":
        return ToolUse()
    only = choice.function.name if isinstance(choice, ToolChoice) else None
    if only is not None and only not in names:
        raise RequestError(f"tool_choice names {only!r}, which is none of the tools: {', '.join(names)}", "tool_choice")
    offered = tuple(tool.model_dump(exclude_none=True) for tool in tools)
    return ToolUse(offered, choice == "required" or only is not None, only, body.parallel_tool_calls is not False)
