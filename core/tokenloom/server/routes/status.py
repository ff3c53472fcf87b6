"""What can be asked of the server itself: models, health, version, metrics."""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Response

from tokenloom.observability.exposition import METRICS_CONTENT_TYPE
from tokenloom.server.answer_parts import json_bytes
from tokenloom.server.openapi_bodies import ERRORS, Responses
from tokenloom.server.service import Service

__all__ = ["status_routes"]


def status_routes(service: Service) -> APIRouter:
    """The endpoints that generate nothing."""
    router = APIRouter(tags=["status"])
    errors: Responses = {status: ERRORS[status] for status in (401, 404, 503)}
    started = int(time.time())

    def model_card(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": started,
            "owned_by": "tokenloom",
            "max_model_len": service.info.max_model_len,
        }

    @router.get("/v1/models", responses=errors)
    async def list_models() -> Response:
        """The names of the model."""
        return _json({"object": "list", "data": [model_card(name) for name in service.model_names]})

    @router.get("/v1/models/{name:path}", responses=errors)
    async def get_model(name: str) -> Response:
        """One of them."""
        return _json(model_card(service.check_model(name)))

    @router.get("/health", responses={503: ERRORS[503]})
    @router.get("/ping", responses={503: ERRORS[503]})
    async def health() -> Response:
        """Whether there is an engine that works: 503 while it loads, and when it has died."""
        return _json({"status": "ok", "max_model_len": service.info.max_model_len})

    @router.get("/ready", responses={503: ERRORS[503]})
    async def ready() -> Response:
        """Whether requests for tokens are taken: 503 while the server stops, too."""
        if service.is_draining:
            raise service.unavailable("the server is stopping")
        await service.text()
        max_model_len = service.info.max_model_len
        return _json({"status": "ready", "model": service.model_names[0], "max_model_len": max_model_len})

    @router.get("/version", responses={401: ERRORS[401]})
    async def show_version() -> Response:
        """The server's version."""
        return _json({"version": version("tokenloom")})

    @router.get("/metrics", responses={401: ERRORS[401]})
    async def metrics() -> Response:
        """Everything that is counted, as Prometheus reads it; answers without an engine, too."""
        service.metrics.set_num_engine_restarts(service.num_engine_restarts)
        return Response(await service.metrics.scrape(service.client), media_type=METRICS_CONTENT_TYPE)

    return router


def _json(value: Any) -> Response:
    return Response(json_bytes(value), media_type="application/json")
