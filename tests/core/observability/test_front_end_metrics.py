"""Metrics of front ends: their own, those of the engine, and of several workers together."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import pytest
from starlette.types import Message, Receive, Scope, Send

from tests.core.engine_process.served_stub import INFO
from tests.core.observability.samples import sample, samples_of
from tokenloom.clock import VirtualClock
from tokenloom.engine_process.link import FrontEndLink
from tokenloom.engine_process.linked_client import LinkedClient
from tokenloom.engine_process.messages import Call, FromEngine, Reply, ToEngine
from tokenloom.observability.exposition import MetricLabels
from tokenloom.observability.front_end_metrics import FrontEndMetrics
from tokenloom.observability.http_observer import HttpObserver
from tokenloom.observability.metric_store import MetricStore, Snapshot
from tokenloom.observability.shared_snapshots import SnapshotFolder

LABELS = MetricLabels("tiny")


@final
class FakeEngine(FrontEndLink):
    """An engine that answers "metrics", or is busy.

    Attributes:
        client: of it.
        is_busy: whether it gives no answer in time.
    """

    def __init__(self) -> None:
        store = MetricStore()
        store.add("prompt_tokens", 7)
        store.add("request_rejections", 2, "overloaded")
        self._snapshot = store.snapshot()
        self._take: Callable[[FromEngine], None] = lambda message: None
        self.is_busy = False
        self.client = LinkedClient()
        self.client.attach(self)
        self._take(INFO)

    def start(self, on_message: Callable[[FromEngine], None]) -> None:
        self._take = on_message

    def send(self, message: ToEngine) -> None:
        if not isinstance(message, Call):
            return
        assert (message.operation, message.arguments) == ("metrics", {})
        if self.is_busy:
            raise TimeoutError
        self._take(Reply(message.call_id, self._snapshot))

    def close(self) -> None:
        pass


def scrape(metrics: FrontEndMetrics, client: LinkedClient | None = None) -> str:
    return asyncio.run(metrics.scrape(FakeEngine().client if client is None else client))


def test_scrape_joins_the_engine_and_the_front_end() -> None:
    metrics = FrontEndMetrics(LABELS)
    metrics.begin_request()
    metrics.begin_request()
    metrics.end_request("/v1/models", 200, 0.25)
    metrics.observe_refusal("overloaded")
    metrics.observe_refusal("unauthorized")
    metrics.observe_added_time("before_engine", 0.002)
    metrics.set_num_engine_restarts(3)
    text = scrape(metrics)
    assert sample(text, "prompt_tokens_total") == 7
    assert sample(text, "request_rejections_total", reason="overloaded") == 3
    assert sample(text, "request_rejections_total", reason="unauthorized") == 1
    assert sample(text, "http_requests_total", route="/v1/models", status="200") == 1
    assert sample(text, "http_requests_in_progress") == 1
    assert sample(text, "http_request_duration_seconds_sum", route="/v1/models") == 0.25
    assert sample(text, "front_end_time_seconds_count", stage="before_engine") == 1
    assert sample(text, "front_end_time_seconds_count", stage="after_engine") == 0
    assert (sample(text, "engine_up"), sample(text, "engine_restarts_total")) == (1, 3)


def test_scrape_answers_without_an_engine() -> None:
    metrics, client = FrontEndMetrics(LABELS), FakeEngine().client
    scrape(metrics, client)
    client.detach("it died")
    text = scrape(metrics, client)
    assert sample(text, "engine_up") == 0
    assert not [name for name, _ in samples_of(text) if "prompt_tokens" in name]


def test_scrape_of_a_busy_engine_shows_what_was_known() -> None:
    metrics, engine = FrontEndMetrics(LABELS), FakeEngine()
    scrape(metrics, engine.client)
    engine.is_busy = True
    text = scrape(metrics, engine.client)
    assert (sample(text, "engine_up"), sample(text, "prompt_tokens_total")) == (1, 7)


def test_any_worker_tells_of_all_and_a_successor_goes_on_counting(tmp_path: Path) -> None:
    workers = [FrontEndMetrics(LABELS, SnapshotFolder(tmp_path, number)) for number in range(3)]
    for number, worker in enumerate(workers):
        worker.begin_request()
        for _ in range(number + 1):
            worker.begin_request()
            worker.end_request("/v1/models", 200, 0.5)
        worker.publish()
    name, labels = "http_requests_total", {"route": "/v1/models", "status": "200"}
    assert [sample(scrape(worker), name, **labels) for worker in workers] == [6, 6, 6]
    assert sample(scrape(workers[0]), "http_requests_in_progress") == 3
    # The last worker dies with a request in progress; its successor knows what it had counted, and of no request.
    successor = FrontEndMetrics(LABELS, SnapshotFolder(tmp_path, 2))
    successor.publish()
    assert [sample(scrape(worker), name, **labels) for worker in (successor, workers[0])] == [6, 6]
    assert sample(scrape(successor), "http_requests_in_progress") == 2
    assert sample(scrape(successor), "http_request_duration_seconds_count", route="/v1/models") == 6


def test_publishing_goes_on_when_the_folder_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (FrontEndMetrics(LABELS, SnapshotFolder(tmp_path, number)) for number in range(2))
    monkeypatch.setattr("tokenloom.observability.front_end_metrics._PUBLISH_PERIOD_S", 0)
    is_full, publish = True, SnapshotFolder.publish

    def limited(folder: SnapshotFolder, snapshot: Snapshot) -> None:
        if is_full:
            raise OSError(errno.ENOSPC, "no space left")
        publish(folder, snapshot)

    monkeypatch.setattr(SnapshotFolder, "publish", limited)

    async def serve() -> None:
        nonlocal is_full
        publishing = asyncio.create_task(first.publish_forever())
        for _ in range(5):
            await asyncio.sleep(0)
        first.observe_refusal("too_large")
        is_full = False
        for _ in range(5):
            await asyncio.sleep(0)
        assert sample(await second.scrape(FakeEngine().client), "request_rejections_total", reason="too_large") == 1
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing

    asyncio.run(serve())
    assert caplog.text.count("no space left") == 1


def test_publishing_ends_with_what_came_last(tmp_path: Path) -> None:
    first, second = (FrontEndMetrics(LABELS, SnapshotFolder(tmp_path, number)) for number in range(2))

    async def serve() -> None:
        publishing = asyncio.create_task(first.publish_forever())
        await asyncio.sleep(0)
        first.observe_refusal("too_large")
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing

    asyncio.run(serve())
    assert sample(scrape(second), "request_rejections_total", reason="too_large") == 1


# ---- HTTP ----


def observed(app: Any, *, path: str = "/v1/models", leaves: bool = False) -> str:
    """The metrics after one request to an app."""
    metrics, clock = FrontEndMetrics(LABELS), VirtualClock()
    app.clock = clock

    async def receive() -> Message:
        return {"type": "http.disconnect"} if leaves else {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        assert sample(await metrics.scrape(FakeEngine().client), "http_requests_in_progress") == 1

    async def ask() -> None:
        scope = {"type": "http", "path": path, "method": "GET", "headers": []}
        try:
            await HttpObserver(app, metrics, clock)(scope, receive, send)
        except RuntimeError:
            return

    asyncio.run(ask())
    return scrape(metrics)


class App:
    """Answers with a status after a second, in two parts; or breaks off."""

    def __init__(self, status: int = 200, *, breaks: bool = False, route: Any = None) -> None:
        self.clock = VirtualClock()
        self._status = status
        self._breaks = breaks
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._route is not None:
            scope["route"] = self._route
        await send({"type": "http.response.start", "status": self._status, "headers": []})
        self.clock.advance(1.0)
        if (await receive())["type"] == "http.disconnect":
            return
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        if self._breaks:
            raise RuntimeError("in mid-stream")
        await send({"type": "http.response.body", "body": b"b"})


def test_fastapi_routes_are_counted_by_their_pattern() -> None:
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    metrics, app = FrontEndMetrics(LABELS), FastAPI()

    @app.get("/v1/models/{name}")
    def show(name: str) -> str:
        return name

    app.add_middleware(HttpObserver, metrics=metrics)
    client = TestClient(app)
    for path in ("/v1/models/a", "/v1/models/b", "/nothing/here"):
        client.get(path)
    text = scrape(metrics)
    assert sample(text, "http_requests_total", route="/v1/models/{name}", status="200") == 2
    assert sample(text, "http_requests_total", route="other", status="404") == 1


def test_requests_are_measured_to_their_last_byte() -> None:
    text = observed(App(404))
    assert sample(text, "http_requests_total", route="other", status="404") == 1
    assert sample(text, "http_request_duration_seconds_sum", route="other") == 1.0
    assert sample(text, "http_requests_in_progress") == 0


@pytest.mark.parametrize(("app", "leaves", "status"), [(App(), True, "499"), (App(breaks=True), False, "500")])
def test_answers_that_break_off_do_not_count_as_good(app: App, leaves: bool, status: str) -> None:
    text = observed(app, leaves=leaves)
    assert sample(text, "http_requests_total", route="other", status=status) == 1
    assert sample(text, "http_requests_in_progress") == 0
