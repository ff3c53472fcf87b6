"""What both APIs' answers are made of: head, usage, server-sent events, and why a choice ended. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tokenloom.batch import ALL_FORBIDDEN
from tokenloom.engine_output import EngineOutput
from tokenloom.request import FinishReason
from tokenloom.server.api_errors import ApiError

__all__ = ["DONE", "AnswerHead", "Usage", "event", "finish_reason", "json_bytes", "usage_of"]

DONE = b"data: [DONE]\n\n"
_encoder = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every chunk of one answer bears.

    Attributes:
        id: "chatcmpl-..." or "cmpl-...".
        created: Unix time, seconds.
        model: as the client called it.
    """

    id: str
    created: int
    model: str


class PromptDetails(msgspec.Struct):
    """Of the prompt's tokens, those found in the prefix cache."""

    cached_tokens: int


class Usage(msgspec.Struct):
    """Tokens of a request. Several choices of one prompt count it once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


def usage_of(num_prompt_tokens: int, num_output_tokens: int, num_cached_tokens: int) -> Usage:
    """The usage of these counts."""
    total = num_prompt_tokens + num_output_tokens
    return Usage(num_prompt_tokens, num_output_tokens, total, PromptDetails(num_cached_tokens))


UsageField = Usage | None | UnsetType
"""Absent in streams that do not end with the usage; null in the other chunks of those that do."""


def event(chunk: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + _encoder.encode(chunk) + b"\n\n"


def json_bytes(value: Any) -> bytes:
    """A value as JSON."""
    return _encoder.encode(value)


def finish_reason(output: EngineOutput) -> str | None:
    """Why a choice ended, or None while it runs.

    Raises:
        ApiError: it ended with an error, or because the server stops.
    """
    reason = output.finish_reason
    if reason is None:
        return None
    if reason is FinishReason.ERROR:
        message = output.error or "the request failed"
        if ALL_FORBIDDEN in message:
            # What the request itself forbids leaves nothing to choose.
            raise ApiError(400, message, code="no_token_left")
        raise ApiError(500, message, code="generation_failed")
    if reason is FinishReason.ABORT:
        raise ApiError(503, "the request was ended: the server is shutting down", code="server_stopping")
    return reason.value


def optional(is_wanted: bool, value: Any) -> Any:
    """A field's value, or nothing at all."""
    return value if is_wanted else UNSET
