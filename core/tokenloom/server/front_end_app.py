"""Makes the application of a front end's process from the server's settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI

from tokenloom.engine_process.linked_client import LinkedClient
from tokenloom.observability.exposition import MetricLabels
from tokenloom.observability.front_end_metrics import FrontEndMetrics
from tokenloom.observability.shared_snapshots import SnapshotFolder
from tokenloom.observability.span_receiver import build_request_spans
from tokenloom.server.api_errors import ApiError
from tokenloom.server.app import build_app
from tokenloom.server.auth import ApiKeys
from tokenloom.server.front_end_place import FrontEndPlace
from tokenloom.server.routes.page import PAGE_PATHS, page_routes
from tokenloom.server.service import Service
from tokenloom.server.settings import ServerSettings, read_api_keys

__all__ = ["TellStart", "front_end_app"]

TellStart = Callable[[Exception | None], None]
"""Called once: with None when requests can be answered, else with what makes that impossible."""

_POLL_S = 0.05


def front_end_app(
    client: LinkedClient, settings: ServerSettings, place: FrontEndPlace, tell_start: TellStart
) -> FastAPI:
    """The application.

    Raises:
        ConfigError: the keys cannot be read, or no spans can be sent.
    """
    folder = None if place.folder is None or place.num_front_ends == 1 else SnapshotFolder(place.folder, place.index)
    names = settings.served_model_names
    labels = MetricLabels(names[0] if names else "", has_vllm_names=settings.vllm_metric_names)
    metrics = FrontEndMetrics(labels, folder)
    keys = ApiKeys(read_api_keys(settings), shares_cache=settings.shared_prefix_cache)
    spans = build_request_spans(settings.otel_endpoint)
    service = Service(client, settings, metrics=metrics, place=place, keys=keys, spans=spans)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(metrics.publish_forever()), asyncio.create_task(_load_early(service, tell_start))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            service.close()
            spans.close()

    return build_app(service, routers=(page_routes(service),), open_paths=PAGE_PATHS, lifespan=lifespan)


async def _load_early(service: Service, tell_start: TellStart) -> None:
    """Loads the model's tokenizer as soon as there is an engine, so that no request waits for it."""
    while True:
        while not service.client.is_ready:
            await asyncio.sleep(_POLL_S)
        try:
            await service.text()
        except ApiError:
            # The engine has gone meanwhile; the next one brings its own.
            continue
        # Whatever it is, no request could be answered.
        except Exception as error:  # noqa: BLE001
            tell_start(error)
        else:
            tell_start(None)
        return
