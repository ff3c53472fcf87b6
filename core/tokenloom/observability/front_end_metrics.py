"""Metrics of a front end: its HTTP requests and the time that it adds; and the whole page that Prometheus reads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import Literal, final

from tokenloom.engine_process.linked_client import LinkedClient
from tokenloom.errors import EngineDeadError
from tokenloom.observability.exposition import MetricLabels, render_metrics
from tokenloom.observability.metric_store import MetricStore, Snapshot, merge_snapshots
from tokenloom.observability.metric_table import METRICS, RefusalReason
from tokenloom.observability.shared_snapshots import SnapshotFolder

__all__ = ["FrontEndMetrics"]

_log = logging.getLogger(__name__)
_PUBLISH_PERIOD_S = 1.0
_ENGINE_TIMEOUT_S = 2.0
"""How long a scrape waits for the engine, which answers between two steps. Then it shows what it knew last."""


@final
class FrontEndMetrics:
    """Counts what one front end does. Lives in one event loop.

    With several front ends each gets a `SnapshotFolder`, and `publish_forever` runs beside the server; then `scrape`
    tells of all of them, of the others as of a second ago.
    """

    def __init__(self, labels: MetricLabels, folder: SnapshotFolder | None = None) -> None:
        self._labels = labels
        self._folder = folder
        self._inherited: Snapshot = {} if folder is None else folder.inherited()
        self._store = MetricStore()
        self._store.start(name for name, metric in METRICS.items() if metric.of_http)
        self._engine: Snapshot = {}
        self._num_restarts = 0
        self._has_failed_to_publish = False

    def begin_request(self) -> None:
        """An HTTP request has come; `end_request` follows."""
        self._store.add("http_requests_in_progress", 1)

    def end_request(self, route: str, status: int, duration_s: float) -> None:
        """An HTTP request is done with.

        Args:
            route: the route's pattern, never the path that was asked for, of which there is no end.
            status: what was answered; 499 where the client left before.
            duration_s: from the request's head to the last byte.
        """
        self._store.add("http_requests_in_progress", -1)
        self._store.add("http_requests", 1, route, str(status))
        self._store.histogram("http_request_duration_seconds", route).observe(duration_s)

    def observe_added_time(self, stage: Literal["before_engine", "after_engine"], duration_s: float) -> None:
        """Time that a request spent here: until its submission, or from its first token to its stream's first byte."""
        self._store.histogram("front_end_time_seconds", stage).observe(duration_s)

    def observe_refusal(self, reason: RefusalReason) -> None:
        """Counts a request for tokens that never reached the engine. What the engine refuses, it counts itself."""
        self._store.add("request_rejections", 1, reason)

    def set_num_engine_restarts(self, count: int) -> None:
        """How often the engine has been started again, as the supervisor says."""
        self._num_restarts = count

    async def scrape(self, client: LinkedClient) -> str:
        """The metrics of the engine and all front ends as text; answers without an engine, too."""
        engine = await self._ask(client)
        status: Snapshot = {
            "engine_up": [[[], int(client.is_ready), []]],
            "engine_restarts": [[[], self._num_restarts, []]],
        }
        others = [] if self._folder is None else self._folder.others()
        return render_metrics(merge_snapshots([status, engine, self._own(), *others]), self._named(client))

    def publish(self) -> None:
        """Leaves this front end's values where the others find them."""
        if self._folder is not None:
            self._folder.publish(self._own())

    async def publish_forever(self) -> None:
        """Publishes now and then, until it is cancelled, and once more then. Returns at once if there is no other."""
        try:
            while self._folder is not None:
                self._try_to_publish()
                await asyncio.sleep(_PUBLISH_PERIOD_S)
        finally:
            self._try_to_publish()

    def _try_to_publish(self) -> None:
        """A folder that is full now may have room in a second; what could not be written is logged once."""
        try:
            self.publish()
        except OSError as error:
            if not self._has_failed_to_publish:
                _log.warning("the other workers' /metrics lack this one's latest values, for now: %s", error)
            self._has_failed_to_publish = True
        else:
            self._has_failed_to_publish = False

    def _named(self, client: LinkedClient) -> MetricLabels:
        """The labels, with the model's source as its name if it has no other; that is known once there is an engine."""
        if not self._labels.model_name:
            with contextlib.suppress(EngineDeadError):
                self._labels = replace(self._labels, model_name=client.info.config["model"]["source"])
        return self._labels

    def _own(self) -> Snapshot:
        return merge_snapshots([self._inherited, self._store.snapshot()])

    async def _ask(self, client: LinkedClient) -> Snapshot:
        """The engine's values; those of before where it is busy, none where there is no engine."""
        try:
            self._engine = await asyncio.wait_for(client.call("metrics"), _ENGINE_TIMEOUT_S)
        except EngineDeadError:
            self._engine = {}
        except TimeoutError:
            pass
        return self._engine
