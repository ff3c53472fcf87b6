"""One request for tokens, as its API understands it: what is submitted, and how the answer is written."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

from tokenloom.engine_process.messages import GRAMMAR_PARAM
from tokenloom.errors import RequestError
from tokenloom.server.answer_parts import AnswerHead, Usage
from tokenloom.server.auth import Tenant
from tokenloom.server.generation import Job
from tokenloom.server.generation_body import GenerationBody
from tokenloom.server.grammar_choice import grammar_field
from tokenloom.text.output_processor import ChoiceDelta

__all__ = ["AnswerWriter", "Exchange", "RequestContext", "check_stream_options", "new_head"]


class AnswerWriter(Protocol):
    """Writes one answer: either `begin`, `events` and `usage_event`, or `collect` and `whole`."""

    def begin(self) -> bytes:
        """Events before the first news."""

    def events(self, index: int, delta: ChoiceDelta, usage: Usage | None) -> bytes:
        """Events of one choice's news; `usage` is that of the request so far, where chunks hold it."""

    def usage_event(self, usage: Usage) -> bytes:
        """The event with the usage, where it is wanted."""

    def collect(self, index: int, delta: ChoiceDelta) -> None:
        """Keeps one choice's news."""

    def whole(self, usage: Usage) -> bytes:
        """The answer as JSON."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What is known of a request beside its body.

    Attributes:
        request_id: of the client, or made up for it; in logs and in the header X-Request-Id.
        tenant: whose it is.
        model: as the client called it.
        arrival_s: when its head had come, on the machine's clock.
        num_body_bytes: how long its body is.
    """

    request_id: str
    tenant: Tenant
    model: str
    arrival_s: float
    num_body_bytes: int


class Exchange(ABC):
    """A checked request. `prepare` is called once, when its places are taken.

    Attributes:
        context: what is known of it beside its body.
        is_stream, wants_usage_always: as asked for.
        many_field: the field that makes choices many.
        field_names: what the engine calls a field that it refuses -> what the client calls it.
    """

    def __init__(self, body: GenerationBody, context: RequestContext) -> None:
        check_stream_options(body)
        self.context = context
        self.is_stream = bool(body.stream)
        self.wants_usage_always = body.wants_usage_always
        self.many_field = "n" if body.n is not None and body.n > 1 else "prompt"
        self.field_names = {GRAMMAR_PARAM: grammar_field(body)}

    @property
    @abstractmethod
    def operation(self) -> str:
        """ "chat" or "text_completion", for traces."""

    @property
    @abstractmethod
    def head(self) -> AnswerHead:
        """What every chunk bears."""

    @property
    @abstractmethod
    def num_choices(self) -> int:
        """Over all prompts."""

    @abstractmethod
    async def prepare(self) -> tuple[Job, AnswerWriter]:
        """Tokenizes.

        Raises:
            RequestError, ApiError: the request can never run as asked.
        """


def check_stream_options(body: GenerationBody) -> None:
    """Refuses stream_options that nothing would heed, and what a stream cannot hold."""
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options is allowed with stream=true only; leave it out", "stream_options")
    if body.stream and body.prompt_logprobs is not None:
        raise RequestError(
            "prompt_logprobs is allowed without stream only; leave one of them out, or use echo with logprobs",
            "prompt_logprobs",
        )


def new_head(prefix: str, model: str) -> AnswerHead:
    """The head of an answer that begins now."""
    return AnswerHead(f"{prefix}-{secrets.token_hex(16)}", int(time.time()), model)
