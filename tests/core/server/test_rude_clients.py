"""Clients on a real socket that go away, do not read, do not send, or do not wait."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.core.server.served_app import ServedApp
from tokenloom.engine_process.messages import Abort

Serve = Callable[..., ServedApp]
ENDLESS = {"prompt": "x", "max_tokens": 240, "ignore_eos": True}
TIMEOUT_S = 30.0


@contextmanager
def connected(app: ServedApp, *, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    address = urlsplit(app.url)
    with socket.socket() as client:
        if receive_buffer is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        client.settimeout(TIMEOUT_S)
        client.connect((address.hostname, address.port))
        yield client


def request(body: dict[str, Any], path: str = "/v1/completions") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def read_all(client: socket.socket) -> bytes:
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)


def leave(client: socket.socket, *, abruptly: bool) -> None:
    if abruptly:  # with a reset instead of a farewell
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


async def is_idle(app: ServedApp) -> bool:
    stats = await app.client.call("stats")
    usage = stats["kv_usage"]
    return stats["running"] == stats["waiting"] == usage["active"] == 0 and app.place.reserved == [0]


async def wait_until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not await condition():
            await asyncio.sleep(0.001)


def wait_for_idle(app: ServedApp) -> None:
    app.run(wait_until(lambda: is_idle(app)))


def wait_for_running(app: ServedApp, count: int) -> None:
    async def running() -> bool:
        return bool((await app.client.call("stats"))["running"] >= count)

    app.run(wait_until(running))


@pytest.fixture(scope="module")
def app(served_engine: Any) -> Any:
    with ServedApp(served_engine, served_model_names=("tiny",)) as served:
        yield served


def test_whoever_leaves_at_any_moment_holds_nothing(app: ServedApp) -> None:
    rng = random.Random(0)
    num_steps = app.stats()["num_steps"]
    for number in range(60):
        with connected(app) as client:
            body = request({**ENDLESS, "stream": number % 2 == 0, "n": 1 + number % 3})
            if number % 5 == 0:
                body = body[: rng.randrange(1, len(body))]
            client.sendall(body)
            if number % 10 == 4:
                client.recv(rng.randrange(1, 3000))
            elif number % 3:
                wait_for_running(app, 1) if number % 5 else None
            leave(client, abruptly=rng.random() < 0.5)
    wait_for_idle(app)
    # Nobody ran to the end: 48 whole requests of 240 tokens would have taken far more steps.
    assert app.stats()["num_steps"] - num_steps < 48 * 240 / 8


def test_nothing_is_aborted_that_has_ended(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    app = serve()
    sent: list[Any] = []
    send = app.client._send

    def recorded(message: Any) -> None:
        sent.append(message)
        send(message)

    monkeypatch.setattr(app.client, "_send", recorded)
    for fields in ({}, {"stream": True}, {"n": 2}, {"stop": "O"}, {"stop_token_ids": [79]}, {"prompt": ["a", "b"]}):
        assert app.complete(**{"prompt": "Once", **fields}).status == 200
    assert not [message for message in sent if isinstance(message, Abort)]


def test_a_client_that_does_not_read_is_cut_off_and_holds_little(serve: Serve) -> None:
    app = serve(write_timeout_s=0.2)
    with connected(app, receive_buffer=4096) as client:
        # Each event of this stream has some kilobytes, so that the sockets' buffers fill.
        client.sendall(request({**ENDLESS, "stream": True, "logprobs": 20, "n": 8, "return_token_ids": True}))
        wait_for_running(app, 1)
        wait_for_idle(app)
        assert b"[DONE]" not in read_all(client)


def test_a_client_that_reads_slowly_gets_everything(serve: Serve) -> None:
    app = serve(write_timeout_s=5.0)
    with connected(app, receive_buffer=4096) as client:
        client.sendall(request({**ENDLESS, "stream": True, "logprobs": 5, "n": 2}))
        text = b""
        while b"[DONE]" not in text[-100:]:
            text += client.recv(2048)
        chunks = [json.loads(line[6:]) for line in text.split(b"\n") if line.startswith(b"data: {")]
        choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
        assert sum(len(choice["logprobs"]["tokens"]) for choice in choices) == 2 * 240
        wait_for_idle(app)


@pytest.mark.parametrize("sent", [b"", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_that_does_not_come_is_not_waited_for(serve: Serve, sent: bytes) -> None:
    app = serve(read_timeout_s=0.1)
    with connected(app) as client:
        client.sendall(sent)
        assert read_all(client) == b""


def test_a_second_request_before_the_answer_ends_the_connection_behind_it(app: ServedApp) -> None:
    with connected(app) as client:
        body = {"prompt": "x", "max_tokens": 20, "ignore_eos": True}
        client.sendall(request(body) + request(body))
        answer = read_all(client)
        assert answer.count(b"HTTP/1.1 200 OK") == 1
        assert b'"finish_reason":"length"' in answer
        wait_for_idle(app)


def test_whoever_leaves_behind_a_second_request_is_noticed(app: ServedApp) -> None:
    with connected(app) as client:
        num_steps = app.stats()["num_steps"]
        client.sendall(request(ENDLESS) + request(ENDLESS))
        wait_for_running(app, 1)
        leave(client, abruptly=False)
        wait_for_idle(app)
        assert app.stats()["num_steps"] - num_steps < 240


def test_what_is_no_http_is_refused_in_the_usual_form(app: ServedApp) -> None:
    with connected(app) as client:
        client.sendall(b"HELLO\r\n\r\n")
        head, _, body = read_all(client).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["error"]["code"] == "invalid_http"


def test_rubbish_behind_a_request_does_not_get_into_the_answer(app: ServedApp) -> None:
    with connected(app) as client:
        client.sendall(request({**ENDLESS, "stream": True}))
        answer = client.recv(100)
        client.sendall(b"\x00\x01 rubbish\r\n\r\n")
        with suppress(ConnectionResetError):
            answer += read_all(client)
        assert answer.count(b"HTTP/1.1") == 1
        wait_for_idle(app)


def test_a_connection_serves_one_request_after_the_other(app: ServedApp) -> None:
    with connected(app) as client:
        for _ in range(3):
            client.sendall(request({"prompt": "x", "max_tokens": 2, "stream": True}))
            answer = b""
            while not answer.endswith(b"0\r\n\r\n"):
                answer += client.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200 OK")


def test_a_body_that_has_not_come_when_the_drain_ends_is_told_so(serve: Serve) -> None:
    app = serve()
    whole = request({"prompt": "x"})

    async def is_read() -> bool:
        return bool(app.place.reads)

    async def end_drain() -> None:
        app.place.end_drain()

    with connected(app) as client:
        client.sendall(whole[:-5])
        app.run(wait_until(is_read))
        app.run(end_drain())
        answer = read_all(client)
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"server_stopping" in answer
    assert not app.place.reads


def test_a_refused_body_closes_its_connection(serve: Serve) -> None:
    app = serve(max_body_bytes=2000)
    with connected(app) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        client.sendall(b"800\r\n" + b" " * 0x800 + b"\r\n")
        answer = read_all(client)
        assert answer.startswith(b"HTTP/1.1 413 ")
