"""Runs an exchange as an ASGI response: takes places, tokenizes, submits, and writes until the end or the client's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import aclosing
from typing import final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tokenloom.clock import Clock, MonotonicClock
from tokenloom.errors import TokenloomError
from tokenloom.observability.spans import NoSpans
from tokenloom.server.answer_parts import DONE
from tokenloom.server.api_errors import ApiError, api_error, error_body
from tokenloom.server.exchange import AnswerWriter, Exchange
from tokenloom.server.generation import Generation, News
from tokenloom.server.request_report import RequestReport
from tokenloom.server.service import Service

__all__ = ["GeneratedAnswer"]

_log = logging.getLogger(__name__)
_CLIENT_LEFT = 499
_JSON = [(b"content-type", b"application/json")]
_EVENTS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


@final
class GeneratedAnswer(Response):
    """The answer to a checked request for tokens. Nothing is held before it is called, or after it returns."""

    def __init__(
        self, service: Service, exchange: Exchange, headers: Mapping[str, str], clock: Clock | None = None
    ) -> None:
        super().__init__(headers=headers)
        self._service = service
        self._exchange = exchange
        self._clock = MonotonicClock() if clock is None else clock
        self._generation: Generation | None = None
        self._first_byte_s: float | None = None
        self._is_abandoned = False
        self._failure: str | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        failure: ApiError | None = None
        places = self._service.reserve(self._exchange.num_choices, self._exchange.many_field)
        watch = asyncio.create_task(self._watch(receive))
        try:
            job, writer = await self._exchange.prepare()
            if not self._is_abandoned:
                text = await self._service.text()
                self._generation = Generation(self._service.client, text.tokenizer, job, places)
                await self._write(self._generation, writer, send)
        except TokenloomError as error:
            failure = api_error(error, self._service.settings.retry_after_s)
            failure.param = self._exchange.field_names.get(failure.param or "", failure.param)
        except ApiError as error:
            failure = error
        finally:
            watch.cancel()
            places.release()
            if self._generation is not None:
                self._generation.close()
        if failure is not None:
            failure.has_reached_engine = self._generation is not None
        self._report(scope, failure)
        if failure is not None:
            raise failure

    def _report(self, scope: Scope, failure: ApiError | None) -> None:
        status = _CLIENT_LEFT if self._is_abandoned else 200 if failure is None else failure.status
        message = self._failure if failure is None else failure.message
        report = RequestReport(self._exchange, self._generation, status, self._first_byte_s, self._clock.now(), message)
        report.log()
        if not isinstance(self._service.spans, NoSpans):
            self._service.spans.record(report.trace(scope))

    async def _watch(self, receive: Receive) -> None:
        """Aborts at once when the client goes away."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._is_abandoned = True
        if self._generation is not None:
            self._generation.close()

    async def _write(self, generation: Generation, writer: AnswerWriter, send: Send) -> None:
        context = self._exchange.context
        self._service.metrics.observe_added_time("before_engine", self._clock.now() - context.arrival_s)
        if self._exchange.is_stream:
            await self._stream(generation, writer, send)
        else:
            await self._whole(generation, writer, send)

    async def _whole(self, generation: Generation, writer: AnswerWriter, send: Send) -> None:
        async with aclosing(generation.news()) as every:
            async for news in every:
                for index, delta in news:
                    writer.collect(index, delta)
        if self._is_abandoned:
            return
        body = writer.whole(generation.usage())
        length = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": [*_JSON, *length, *self._own_headers]})
        await send({"type": "http.response.body", "body": body})
        self._first_byte_s = self._clock.now()

    async def _stream(self, generation: Generation, writer: AnswerWriter, send: Send) -> None:
        try:
            async with aclosing(generation.news()) as every:
                async for news in every:
                    body = self._events(generation, writer, news)
                    if self._first_byte_s is None:
                        start = [*_EVENTS, *self._own_headers]
                        await send({"type": "http.response.start", "status": 200, "headers": start})
                        body = writer.begin() + body
                    if body:
                        await send({"type": "http.response.body", "body": body, "more_body": True})
                    if self._first_byte_s is None:
                        self._observe_first_byte(news)
            last = writer.usage_event(generation.usage()) + DONE
        except (ApiError, TokenloomError) as error:
            if self._first_byte_s is None:
                raise
            last = self._failure_event(error)
        except Exception:
            if self._first_byte_s is None:
                raise
            _log.exception("request %s failed in mid-stream", self._exchange.context.request_id)
            last = self._failure_event(
                ApiError(500, "the server made a mistake; its log says more", code="internal_error")
            )
        if not self._is_abandoned:
            await send({"type": "http.response.body", "body": last})

    def _events(self, generation: Generation, writer: AnswerWriter, news: News) -> bytes:
        usage = generation.usage() if self._exchange.wants_usage_always else None
        return b"".join([writer.events(index, delta, usage) for index, delta in news])

    def _failure_event(self, error: ApiError | TokenloomError) -> bytes:
        """The end of a stream whose status was sent already."""
        told = error if isinstance(error, ApiError) else api_error(error, self._service.settings.retry_after_s)
        self._failure = told.message
        return b"data: " + error_body(told) + b"\n\n" + DONE

    def _observe_first_byte(self, news: News) -> None:
        self._first_byte_s = now_s = self._clock.now()
        landed_s = min(delta.output.landed_s for _, delta in news)
        self._service.metrics.observe_added_time("after_engine", max(0.0, now_s - landed_s))

    @property
    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        return [(name, value) for name, value in self.raw_headers if name != b"content-length"]
