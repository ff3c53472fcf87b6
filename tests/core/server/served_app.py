"""The HTTP application in an event loop of its own, asked from ordinary test code."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import httpx2
import uvicorn
from pydantic import SecretStr

from tokenloom.engine_process.linked_client import LinkedClient
from tokenloom.engine_process.local_client import LocalEngine
from tokenloom.observability.exposition import MetricLabels
from tokenloom.observability.front_end_metrics import FrontEndMetrics
from tokenloom.server.app import build_app
from tokenloom.server.auth import ApiKeys
from tokenloom.server.front_end_place import FrontEndPlace
from tokenloom.server.http_protocol import guarded_protocol
from tokenloom.server.model_text import load_model_text
from tokenloom.server.routes.page import PAGE_PATHS, page_routes
from tokenloom.server.service import Service
from tokenloom.server.settings import ServerSettings, read_api_keys

__all__ = ["Answer", "ServedApp", "chunks_of"]

TIMEOUT_S = 60.0
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client got."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON, which knows no NaN."""
        return json.loads(self.body, parse_constant=lambda name: pytest_fail(f"{name} is no JSON"))

    @property
    def error(self) -> dict[str, Any]:
        """The error; checks its form."""
        error: dict[str, Any] = self.json["error"]
        assert set(self.json) == {"error"}
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        assert error["message"]
        return error

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The events of a stream, which ends with [DONE]."""
        return list(chunks_of(self.body))


def pytest_fail(message: str) -> Any:
    raise AssertionError(message)


def chunks_of(body: bytes) -> Iterator[dict[str, Any]]:
    """Parses server-sent events; the last one must be [DONE]."""
    events = body.decode().split("\n\n")
    assert events.pop() == "", "the last event does not end"
    assert events.pop() == "data: [DONE]"
    for event in events:
        assert event.startswith("data: "), event
        assert "\n" not in event
        yield json.loads(event.removeprefix("data: "))


class ServedApp:
    """One front end on an engine that others may use, too. Closed by `close` or at the end of a `with` block."""

    def __init__(
        self, engine: LocalEngine, *, load_text: Any = load_model_text, place: FrontEndPlace | None = None, **keys: Any
    ) -> None:
        if "api_keys" in keys:
            keys["api_keys"] = tuple(SecretStr(key) for key in keys["api_keys"])
        self.settings = ServerSettings(**keys)
        self.place = FrontEndPlace(0, 1, [0]) if place is None else place
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: uvicorn.Server | None = None
        self.client: LinkedClient = self.run(self._connect(engine))
        self.service = Service(
            self.client,
            self.settings,
            metrics=FrontEndMetrics(MetricLabels("tiny")),
            place=self.place,
            keys=ApiKeys(read_api_keys(self.settings), shares_cache=self.settings.shared_prefix_cache),
            load_text=load_text,
        )
        self.app = build_app(self.service, routers=(page_routes(self.service),), open_paths=PAGE_PATHS)
        self.http = self.run(self._http_client())

    async def _connect(self, engine: LocalEngine) -> LinkedClient:
        return engine.connect()

    async def _http_client(self) -> httpx2.AsyncClient:
        transport = httpx2.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx2.AsyncClient(transport=transport, base_url="http://test")

    def run(self, work: Coroutine[Any, Any, Result], timeout_s: float = TIMEOUT_S) -> Result:
        """Runs a coroutine in the application's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)

    def ask(self, method: str, path: str, **options: Any) -> Answer:
        """One request."""
        response = self.run(self.http.request(method, path, **options))
        return Answer(response.status_code, dict(response.headers), response.content)

    def get(self, path: str, **options: Any) -> Answer:
        """GET."""
        return self.ask("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        """POST with a JSON body."""
        return self.ask("POST", path, **({} if body is None else {"json": body}), **options)

    def complete(self, **fields: Any) -> Answer:
        """POST /v1/completions, greedy and short unless told otherwise."""
        return self.post("/v1/completions", {"temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields})

    def chat(self, **fields: Any) -> Answer:
        """POST /v1/chat/completions, as `complete`."""
        messages = [{"role": "user", "content": "Hello"}]
        body = {"messages": messages, "temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}
        return self.post("/v1/chat/completions", body)

    def stats(self) -> dict[str, Any]:
        """What the engine says of itself."""
        found: dict[str, Any] = self.run(self.client.call("stats"))
        return found

    @cached_property
    def url(self) -> str:
        """The address of the same application on a real socket."""
        listener = socket.create_server(("127.0.0.1", 0))
        # Accepted sockets inherit it: the kernel would hold megabytes for a client that does not read.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        protocol = guarded_protocol(
            read_timeout_s=self.settings.read_timeout_s, write_timeout_s=self.settings.write_timeout_s
        )
        self._server = uvicorn.Server(
            uvicorn.Config(self.app, log_config=None, lifespan="off", http=protocol, ws="none")
        )
        self._serving = asyncio.run_coroutine_threadsafe(self._server.serve(sockets=[listener]), self._loop)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    def close(self) -> None:
        """Ends everything that was started here."""
        if self._server is not None:
            self._server.should_exit = True
            self._serving.result(TIMEOUT_S)
        self.run(self.http.aclose())
        self.run(self.client.close())
        self.service.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()

    def __enter__(self) -> ServedApp:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
