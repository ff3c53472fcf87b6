"""uvicorn's HTTP protocol, guarded against rude clients: slow ones, stalled ones, and those that do not wait."""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from typing import Any, final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tokenloom.server.api_errors import ApiError, error_body

__all__ = ["MAX_HEAD_BYTES", "guarded_protocol"]

MAX_HEAD_BYTES = 65_536
"""Longest head of a request: its first line and headers. The parser itself would keep any number of them."""


def guarded_protocol(*, read_timeout_s: float, write_timeout_s: float) -> type[asyncio.Protocol]:
    """The protocol for `uvicorn.Config(http=...)`.

    Args:
        read_timeout_s: a connection on which a request's head does not come to its end in this time is closed.
        write_timeout_s: one whose client takes nothing of what waits for it in this time is cut off. What waits is
            bounded: while a client is behind, its answer is not written any further.
    """

    @final
    class GuardedProtocol(_GuardedProtocol):
        read_limit_s = read_timeout_s
        write_limit_s = write_timeout_s

    return GuardedProtocol


class _GuardedProtocol(HttpToolsProtocol):
    """One connection. A second request that comes before the first one is answered is never read.

    Reading it would mean to stop listening, and then nobody would notice that the client goes away. So the connection
    ends behind the first answer, and the client sends the second request again, as HTTP tells it to.
    """

    read_limit_s: float
    write_limit_s: float

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_timer: TimerHandle | None = None
        self._write_timer: TimerHandle | None = None
        self._is_deaf = False
        self._is_head_complete = False
        self._has_advanced = False
        self._num_head_bytes = 0

    # ---- the connection ----

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        self._stop_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if self._head_timer is None and not self._is_answering:
            self._expect_head()
        self._has_advanced = False
        super().data_received(data)
        # What is neither a body nor comes to its end is a head, or what may follow a body in its place.
        self._num_head_bytes = 0 if self._has_advanced else self._num_head_bytes + len(data)
        if self._num_head_bytes > MAX_HEAD_BYTES:
            self._refuse_head()

    def send_400_response(self, msg: str) -> None:
        if not self._is_deaf:
            self._refuse(b"400 Bad Request", ApiError(400, msg, code="invalid_http"))

    def _refuse_head(self) -> None:
        message = f"the request's line and headers may have {MAX_HEAD_BYTES} bytes together; send less"
        self._refuse(b"431 Request Header Fields Too Large", ApiError(431, message, code="head_too_large"))

    def _refuse(self, status: bytes, error: ApiError) -> None:
        """Answers in the application's place, and closes the connection."""
        if self._is_deaf:
            return
        self._is_deaf = True
        if self._is_answering:
            # Behind a part of an answer, this would look like more of it.
            self.transport.abort()
            return
        body = error_body(error)
        head = b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-type: application/json\r\n" % status
        self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
        self.transport.close()

    # ---- the parser's callbacks ----

    def on_message_begin(self) -> None:
        if self._is_answering:
            self._is_deaf = True
            self.cycle.keep_alive = False
        else:
            self._is_head_complete = False
            super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._is_deaf:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        # What comes behind a body in chunks is no part of the head, which was judged without it.
        if not self._is_deaf and not self._is_head_complete:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_deaf:
            return
        self._is_head_complete = self._has_advanced = True
        self._forget_head()
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refuse_head()
            return
        # The answer to the request before was taken, at least as far as this client cares.
        self._stop_write_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_advanced = True
        if not self._is_deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._has_advanced = True
        if not self._is_deaf:
            super().on_message_complete()

    # ---- clients that do not send ----

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(self.read_limit_s, self._give_up)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        self.transport.abort()

    # ---- clients that do not read ----

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        # While an answer is being written, whoever does not take it is noticed at the next pause, or at its end.
        self._stop_write_timer()
        super().resume_writing()
        if not self._is_answering:
            self._watch_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_writing()

    def _watch_writing(self) -> None:
        """Begins to watch whether what waits is taken. Nothing may be written meanwhile."""
        self._stop_write_timer()
        num_waiting = self.transport.get_write_buffer_size()
        if num_waiting:
            self._write_timer = self.loop.call_later(self.write_limit_s, self._check_writing, num_waiting)

    def _check_writing(self, num_waiting: int) -> None:
        """Cuts the connection off if the client has taken nothing since `num_waiting` bytes waited for it."""
        self._write_timer = None
        if self.transport.get_write_buffer_size() >= num_waiting:
            self.transport.abort()
        else:
            self._watch_writing()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
