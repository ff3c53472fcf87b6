"""What is told of a request for tokens once it is answered: a line in the log, and a trace for spans."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import final

from starlette.routing import Route
from starlette.types import Scope

from tokenloom.observability.request_trace import ChoiceTrace, RequestTrace
from tokenloom.server.exchange import Exchange
from tokenloom.server.generation import Generation

__all__ = ["RequestReport"]

_TRACE_HEADERS = (b"traceparent", b"tracestate", b"baggage")
_log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class RequestReport:
    """How a request went.

    Attributes:
        exchange: what was asked.
        generation: what came of it in the engine; None if it did not get there.
        status: of HTTP.
        first_byte_s, end_s: when the answer began and ended; None if it did not begin.
        error: what went wrong, as the client was told.
    """

    exchange: Exchange
    generation: Generation | None
    status: int
    first_byte_s: float | None
    end_s: float
    error: str | None

    def log(self) -> None:
        """One line: who, what, how much, how long. Faults of the server are shown at any level."""
        level = (
            logging.ERROR
            if self.status >= 500
            else logging.WARNING
            if self.status == 200 and self.error
            else logging.DEBUG
        )
        if not _log.isEnabledFor(level):
            return
        context, generation = self.exchange.context, self.generation
        tokens = ""
        if generation is not None:
            usage = generation.usage()
            tokens = f", {usage.prompt_tokens} prompt and {usage.completion_tokens} output tokens"
        _log.log(
            level,
            "request %s (%s)%s: %s, status %d%s, %.3f s%s",
            context.request_id,
            self.exchange.head.id,
            f" of {context.tenant.name}" if context.tenant.name else "",
            self.exchange.operation,
            self.status,
            tokens,
            self.end_s - context.arrival_s,
            "" if self.error is None else f": {self.error}",
        )

    def trace(self, scope: Scope) -> RequestTrace:
        """The same for spans."""
        context, generation, route = self.exchange.context, self.generation, scope.get("route")
        usage = None if generation is None else generation.usage()
        return RequestTrace(
            headers={
                name.decode("latin-1"): value.decode("latin-1")
                for name, value in scope["headers"]
                if name in _TRACE_HEADERS
            },
            operation=self.exchange.operation,
            route=route.path if isinstance(route, Route) else scope["path"],
            status=self.status,
            request_id=self.exchange.head.id,
            http_request_id=context.request_id,
            model=context.model,
            arrival_s=context.arrival_s,
            end_s=self.end_s,
            first_byte_s=self.first_byte_s,
            params=None if generation is None else generation.job.params,
            num_prompt_tokens=0 if usage is None else usage.prompt_tokens,
            num_cached_tokens=0 if usage is None else usage.prompt_tokens_details.cached_tokens,
            choices=() if generation is None else _choice_traces(generation),
            error=self.error,
        )


def _choice_traces(generation: Generation) -> tuple[ChoiceTrace, ...]:
    return tuple(
        ChoiceTrace(
            index,
            choice.times,
            choice.last_token_s,
            choice.num_tokens,
            None if choice.finish_reason is None else choice.finish_reason.value,
        )
        for index, choice in enumerate(generation.choices)
        if choice.times is not None
    )
