"""The guarded protocol by itself: what it keeps of a request's head, and whom it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from tokenloom.server.http_protocol import MAX_HEAD_BYTES, guarded_protocol

LINE = b"GET /health HTTP/1.1\r\nHost: x\r\n"


class StubTransport(asyncio.Transport):
    """A connection whose client reads as much as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.num_waiting = 0
        self.is_aborted = self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.num_waiting

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = self.is_closed = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class StubTimer:
    """A timer that the test ends."""

    def __init__(self, delay_s: float, callback: Any, arguments: Any) -> None:
        self.delay_s, self.callback, self.arguments = delay_s, callback, arguments
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class StubLoop:
    """Keeps timers and tasks, and runs nothing."""

    def __init__(self, real: asyncio.AbstractEventLoop) -> None:
        self._real = real
        self.timers: list[StubTimer] = []
        self.num_tasks = 0

    def call_later(self, delay_s: float, callback: Any, *arguments: Any) -> StubTimer:
        self.timers.append(StubTimer(delay_s, callback, arguments))
        return self.timers[-1]

    def create_task(self, work: Any) -> asyncio.Future[None]:
        work.close()
        self.num_tasks += 1
        return asyncio.Future(loop=self._real)

    def fire(self, delay_s: float) -> None:
        """Lets all timers of this length run out."""
        due = [timer for timer in self.timers if timer.delay_s == delay_s and not timer.is_cancelled]
        self.timers = [timer for timer in self.timers if timer not in due]
        for timer in due:
            timer.callback(*timer.arguments)


READ_S, WRITE_S = 30.0, 60.0


@pytest.fixture
def loop() -> Iterator[StubLoop]:
    real = asyncio.new_event_loop()
    yield StubLoop(real)
    real.close()


@pytest.fixture
def transport() -> StubTransport:
    return StubTransport()


@pytest.fixture
def protocol(loop: StubLoop, transport: StubTransport) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("tasks do not run here")

    config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none")
    protocol: Any = guarded_protocol(read_timeout_s=READ_S, write_timeout_s=WRITE_S)(  # type: ignore[call-arg]
        config=config, server_state=ServerState(), app_state={}, _loop=loop
    )
    protocol.connection_made(transport)
    return protocol


def feed(protocol: Any, transport: StubTransport, parts: Iterator[bytes]) -> int:
    """Sends until the connection is closed; the bytes that were taken."""
    num_bytes = 0
    for part in parts:
        protocol.data_received(part)
        num_bytes += len(part)
        if transport.is_closed or num_bytes > 4 * MAX_HEAD_BYTES:
            break
    return num_bytes


def forever(first: bytes, part: bytes) -> Iterator[bytes]:
    yield first
    while True:
        yield part


CHUNKED = b"POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
ENDLESS = {
    "headers": (LINE, b"x-header: " + b"v" * 1000 + b"\r\n"),
    "a value": (LINE + b"x-header: ", b"v" * 1000),
    "a name": (LINE, b"x" * 1000),
    "a URL": (b"GET /", b"a" * 1000),
    "a method": (b"", b"A" * 1000),
    "nothing": (b"", b"\r\n" * 500),
    "trailers": (CHUNKED, b"x-header: " + b"v" * 1000 + b"\r\n"),
    "a trailer": (CHUNKED + b"x-header: ", b"v" * 1000),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_head_without_end_ends_the_connection(protocol: Any, transport: StubTransport, kind: str) -> None:
    first, part = ENDLESS[kind]
    assert feed(protocol, transport, forever(first, part)) <= MAX_HEAD_BYTES + len(first) + 2 * len(part)
    assert transport.is_closed


@pytest.mark.parametrize("kind", ["headers", "a value", "a name", "a URL"])
def test_whoever_sends_too_long_a_head_is_told(
    protocol: Any, transport: StubTransport, loop: StubLoop, kind: str
) -> None:
    first, part = ENDLESS[kind]
    feed(protocol, transport, forever(first, part))
    head, _, body = transport.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert b"connection: close" in head
    assert b'"code":"head_too_large"' in body
    assert loop.num_tasks == 0
    protocol.data_received(b"more")
    assert transport.written.count(b"HTTP/1.1") == 1


def test_a_long_head_is_refused_however_it_is_cut(protocol: Any, transport: StubTransport, loop: StubLoop) -> None:
    protocol.data_received(LINE + b"x-header: " + b"v" * MAX_HEAD_BYTES + b"\r\n\r\n")
    assert transport.written.startswith(b"HTTP/1.1 431 ")
    assert loop.num_tasks == 0


def test_a_long_body_is_no_head(protocol: Any, transport: StubTransport, loop: StubLoop) -> None:
    protocol.data_received(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (3 * MAX_HEAD_BYTES))
    for _ in range(3):
        protocol.data_received(b"x" * MAX_HEAD_BYTES)
    assert (transport.is_closed, transport.written, loop.num_tasks) == (False, b"", 1)


def test_small_chunks_of_a_body_are_no_head(protocol: Any, transport: StubTransport) -> None:
    protocol.data_received(CHUNKED.partition(b"2\r\n")[0])
    for _ in range(MAX_HEAD_BYTES // 6 + 10):
        protocol.data_received(b"1\r\nx\r\n")
    assert not transport.is_closed


def test_what_comes_behind_a_body_does_not_get_into_the_head(protocol: Any) -> None:
    protocol.data_received(CHUNKED + b"Authorization: Bearer s3cret\r\n\r\n")
    assert b"authorization" not in dict(protocol.cycle.scope["headers"])
    assert not protocol.cycle.more_body


def answered(protocol: Any, transport: StubTransport, num_waiting: int) -> None:
    """An answer that is written, and of which so many bytes wait for the client."""
    protocol.data_received(LINE + b"\r\n")
    transport.num_waiting = num_waiting
    if num_waiting > 50_000:
        protocol.pause_writing()
    protocol.cycle.response_complete = True
    protocol.on_response_complete()


@pytest.mark.parametrize("num_waiting", [100, 100_000])
def test_whoever_leaves_the_rest_of_an_answer_unread_is_cut_off(
    protocol: Any, transport: StubTransport, loop: StubLoop, num_waiting: int
) -> None:
    answered(protocol, transport, num_waiting)
    if num_waiting > 100:
        transport.num_waiting = 10_000
        protocol.resume_writing()
    loop.fire(WRITE_S)
    assert transport.is_aborted


def test_whoever_reads_on_is_waited_for(protocol: Any, transport: StubTransport, loop: StubLoop) -> None:
    answered(protocol, transport, 100_000)
    for num_waiting in (60_000, 10_000, 5_000, 100):
        transport.num_waiting = num_waiting
        if num_waiting == 10_000:
            protocol.resume_writing()
        else:
            loop.fire(WRITE_S)
        assert not transport.is_aborted
    transport.num_waiting = 0
    loop.fire(WRITE_S)
    loop.fire(WRITE_S)
    assert not transport.is_aborted


def test_a_next_answer_is_not_taken_for_the_rest_of_the_last_one(
    protocol: Any, transport: StubTransport, loop: StubLoop
) -> None:
    answered(protocol, transport, 100)
    protocol.data_received(LINE + b"\r\n")
    transport.num_waiting = 200
    loop.fire(WRITE_S)
    assert not transport.is_aborted
