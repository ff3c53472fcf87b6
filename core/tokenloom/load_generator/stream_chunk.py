"""The few fields of a streamed chunk that a measurement needs, decoded without building the rest."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["DONE", "Choice", "Delta", "PromptDetails", "StreamChunk", "Usage", "decode_chunk"]

DONE = b"[DONE]"


class PromptDetails(msgspec.Struct):
    """Where prompt tokens came from."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Exact token counts, so far or in all."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Delta(msgspec.Struct):
    """New content of a chat message."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class Choice(msgspec.Struct):
    """New content of one choice."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None

    @property
    def has_content(self) -> bool:
        """Whether a reader would see something new: text, reasoning or a piece of a tool call."""
        delta = self.delta
        if delta is None:
            return bool(self.text)
        return bool(delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)


class StreamChunk(msgspec.Struct):
    """One event of a stream. `error` is whatever a server sends when it fails in mid-stream."""

    choices: list[Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    message: str | None = None
    code: Any = None


_decode = msgspec.json.Decoder(StreamChunk).decode


def decode_chunk(data: bytes) -> StreamChunk:
    """Decodes the data of one event.

    Raises:
        msgspec.MsgspecError: it is no JSON object, or a field has another type.
    """
    return _decode(data)
