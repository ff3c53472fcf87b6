"""A small OpenAI-compatible server with scripted answers, on a port of localhost, in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

__all__ = ["FakeServer", "Reply", "completion_events", "event"]


def event(data: Any) -> bytes:
    """One event; text is sent as it is."""
    return b"data: " + (data.encode() if isinstance(data, str) else json.dumps(data).encode()) + b"\n\n"


def completion_events(texts: Sequence[str], *, has_usage: bool = True, has_done: bool = True) -> list[bytes]:
    """The events of a well-behaved streamed completion."""
    events = [event({"choices": [{"index": 0, "text": text, "finish_reason": None}]}) for text in texts]
    events.append(event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": None}))
    if has_usage:
        events.append(event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": len(texts)}}))
    return [*events, *([event("[DONE]")] if has_done else [])]


@dataclass
class Reply:
    """What is answered to a streamed request.

    Attributes:
        pieces: written one by one.
        status, headers: of the response.
        tears: whether the connection is torn apart behind the pieces.
        hangs: whether nothing more comes, and no end either.
    """

    pieces: Sequence[bytes] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "text/event-stream"})
    tears: bool = False
    hangs: bool = False


class FakeServer:
    """Answers streams by `script(number, body)`, plain requests with `text`; keeps the bodies and headers it got."""

    def __init__(self, script: Callable[[int, dict[str, Any]], Reply] | None = None, **settings: Any) -> None:
        self._script = script or (lambda number, body: Reply(completion_events(["x"] * body["max_tokens"])))
        self.text: str = settings.pop("text", "abcdef")
        self.takes_token_ids: bool = settings.pop("takes_token_ids", True)
        self.has_logprobs: bool = settings.pop("has_logprobs", True)
        self.logprob: float = settings.pop("logprob", -0.5)
        self.api_key: str | None = settings.pop("api_key", None)
        self.models: list[str] | None = settings.pop("models", ["tiny"])
        assert not settings, settings
        self.streamed: list[dict[str, Any]] = []
        self.plain: list[dict[str, Any]] = []
        self.num_connections = 0
        self._ports: set[Any] = set()
        self._loop = asyncio.new_event_loop()

    @contextmanager
    def running(self) -> Iterator[str]:
        """Yields the base URL, without a path."""
        started: list[str] = []
        ready, ending = threading.Event(), asyncio.Event()
        thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve(started, ready, ending)))
        thread.start()
        assert ready.wait(20)
        try:
            yield started[0]
        finally:
            self._loop.call_soon_threadsafe(ending.set)
            thread.join(20)
            self._loop.close()
            assert not thread.is_alive()

    async def _serve(self, started: list[str], ready: threading.Event, ending: asyncio.Event) -> None:
        app = web.Application(middlewares=[self._middleware])
        for route in ("/v1/completions", "/v1/chat/completions"):
            app.router.add_post(route, self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/version", self._version)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        started.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        ready.set()
        await ending.wait()
        await runner.cleanup()

    @web.middleware
    async def _middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        assert request.transport is not None
        peer = request.transport.get_extra_info("peername")
        self.num_connections += peer not in self._ports
        self._ports.add(peer)
        if self.api_key is not None and request.headers.get("Authorization") != f"Bearer {self.api_key}":
            return web.json_response({"error": {"message": "a key is missing"}}, status=401)
        return await handler(request)

    async def _models(self, request: web.Request) -> web.Response:
        if self.models is None:
            return web.Response(status=404)
        return web.json_response({"object": "list", "data": [{"id": name} for name in self.models]})

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "9.9"})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not body["stream"]:
            self.plain.append(body)
            return self._plain_answer(body)
        self.streamed.append(body)
        reply = self._script(len(self.streamed) - 1, body)
        response = web.StreamResponse(status=reply.status, headers=reply.headers)
        await response.prepare(request)
        for piece in reply.pieces:
            await response.write(piece)
        if reply.hangs:
            await asyncio.sleep(60)
        if reply.tears:
            assert request.transport is not None
            request.transport.abort()
        return response

    def _plain_answer(self, body: dict[str, Any]) -> web.Response:
        if isinstance(body.get("prompt"), list) and not self.takes_token_ids:
            return web.json_response({"error": {"message": "prompt must be text"}}, status=422)
        if body.get("logprobs") and not self.has_logprobs:
            return web.json_response({"error": {"message": "logprobs are not supported"}}, status=400)
        tokens = list(self.text[: body["max_tokens"]])
        if "messages" in body:
            best = [{"token": "?", "logprob": self.logprob}, {"token": "!", "logprob": self.logprob - 1.5}]
            rows = [{"token": token, "logprob": self.logprob, "top_logprobs": best} for token in tokens]
            choice: dict[str, Any] = {"message": {"content": "".join(tokens)}, "logprobs": {"content": rows}}
        else:
            best_two = {"?": self.logprob, "!": self.logprob - 1.5}
            row = {
                "tokens": tokens,
                "token_logprobs": [self.logprob] * len(tokens),
                "top_logprobs": [best_two] * len(tokens),
            }
            choice = {"text": "".join(tokens), "logprobs": row}
        return web.json_response({"choices": [choice if body.get("logprobs") else {**choice, "logprobs": None}]})
