"""What chat templates get: messages with the arguments of earlier tool calls as objects, and variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tokenloom.errors import RequestError
from tokenloom.server.chat_body import MAX_MESSAGE_VALUES
from tokenloom.server.value_limits import check_weight

__all__ = ["template_messages", "template_variables"]

_OWN_FIELDS = ("messages", "add_generation_prompt", "tools")
"""Variables of templates that the body has fields for."""


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with the arguments of tool calls parsed; those that are no JSON object stay as the model wrote them.

    Raises:
        RequestError: a message's tool calls are not of the API's form.
    """
    if not messages:
        raise RequestError("messages is empty; send at least one", "messages")
    found = [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]
    try:
        # Arguments came as text, and are but now known to hold so much.
        check_weight(found, MAX_MESSAGE_VALUES)
    except ValueError as error:
        raise RequestError(f"messages {error}", "messages") from None
    return found


def template_variables(
    given: Mapping[str, Any] | None,
    tools: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool,
    reasoning_effort: str | None = None,
) -> dict[str, Any]:
    """A template's variables: those that were given, and those that are fields of the body.

    Raises:
        RequestError: one is given that has a field of its own.
    """
    variables = dict(given or {})
    for name in _OWN_FIELDS:
        if name in variables:
            raise RequestError(f"chat_template_kwargs.{name}: this is a field of the request itself", name)
    if reasoning_effort is not None:
        variables["reasoning_effort"] = reasoning_effort
    if tools:
        variables["tools"] = tools
    return {**variables, "add_generation_prompt": add_generation_prompt}


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        # An empty list is what clients keep of a reply without calls, and null of one without text.
        if calls == [] and message.get("content") is None:
            message = {**message, "content": ""}
        return {key: value for key, value in message.items() if key != "tool_calls"}
    if not isinstance(calls, list):
        raise RequestError(f"{where}.tool_calls must be a list, got {calls!r:.80}", f"{where}.tool_calls")
    return {**message, "tool_calls": [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]}


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(
            f'{where} must be {{"id": ..., "type": "function", "function": {{"name": ..., "arguments": ...}}}}, got '
            f"{call!r:.80}",
            where,
        )
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(arguments: Any) -> Any:
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments
