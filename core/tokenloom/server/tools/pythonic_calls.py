"""Calls written as a list in Python: `[get_weather(city="Paris"), get_time()]` (Llama 4, and Llama 3.2 on request)."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, final

from tokenloom.server.tools.interface import ContentDelta, ToolCallArguments, ToolCallStart, ToolDelta, ToolParser

__all__ = ["PythonicCallParser"]


@final
class PythonicCallParser(ToolParser):
    """The whole reply is a list of calls, or it is content. So calls come out at the end; content streams.

    Arguments are the keyword arguments as JSON. What does not parse, or has arguments that are no literals with a name,
    is content.
    """

    def __init__(self, tool_names: Collection[str], make_id: Callable[[], str]) -> None:
        """`tool_names`: the tools that were offered; a list that calls another one is content."""
        self._tool_names = frozenset(tool_names)
        self._make_id = make_id
        self._held = ""
        self._is_content = False

    def push(self, text: str) -> Sequence[ToolDelta]:
        self._held += text
        if not self._is_content and _can_be_calls(self._held):
            return []
        self._is_content = True
        return self._release()

    def finish(self) -> Sequence[ToolDelta]:
        calls = None if self._is_content else _parsed(self._held)
        if calls is None or not all(name in self._tool_names for name, _ in calls):
            return self._release()
        deltas: list[ToolDelta] = []
        for index, (name, arguments) in enumerate(calls):
            deltas += [ToolCallStart(index, self._make_id(), name), ToolCallArguments(index, arguments)]
        return deltas

    def _release(self) -> list[ToolDelta]:
        text, self._held = self._held, ""
        return [ContentDelta(text)] if text else []


_START = re.compile(r"\s*(\[\s*([A-Za-z_][\w.]*\s*(\(.*)?)?)?", re.DOTALL)


def _can_be_calls(text: str) -> bool:
    """Whether `text`, or what it grows to, begins like a list of calls."""
    return _START.fullmatch(text) is not None


def _parsed(text: str) -> list[tuple[str, str]] | None:
    """Names and arguments (JSON) of all calls; None for anything else."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(tree, ast.List) or not tree.elts:
        return None
    calls = [_call(node) for node in tree.elts]
    return [call for call in calls if call is not None] if None not in calls else None


def _call(node: ast.expr) -> tuple[str, str] | None:
    if not isinstance(node, ast.Call) or node.args:
        return None
    arguments: dict[str, Any] = {}
    try:
        for keyword in node.keywords:
            if keyword.arg is None:
                return None
            arguments[keyword.arg] = ast.literal_eval(keyword.value)
        return ast.unparse(node.func), json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
