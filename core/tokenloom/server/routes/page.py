"""GET /: a page to chat with the model and to watch the engine; GET /debug/live: what that page shows of the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request, Response

from tokenloom.server.answer_parts import json_bytes
from tokenloom.server.api_errors import ApiError
from tokenloom.server.service import Service

__all__ = ["PAGE_PATHS", "page_routes"]

PAGE_PATHS = frozenset({"/", "/page/"})
"""Paths of files that anybody may have, for `Gate`. What they show needs a key where the server has keys."""

_INDEX = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    # A file is asked for each time, and sent only if it has changed.
    "Cache-Control": "no-cache",
    # Nothing from elsewhere, nothing inline: what a model writes cannot become code.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    headers: dict[str, str]

    def answer(self, request: Request) -> Response:
        if self.headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=self.headers)
        return Response(self.body, headers=self.headers)


def page_routes(service: Service) -> APIRouter:
    """The page and its data. Not part of the API that OpenAPI describes."""
    router = APIRouter(include_in_schema=False)
    page = dict(_files())

    @router.api_route("/", methods=["GET", "HEAD"])
    async def index(request: Request) -> Response:
        """The page itself."""
        return page[_INDEX].answer(request)

    @router.api_route("/page/{name}", methods=["GET", "HEAD"])
    async def file(request: Request, name: str) -> Response:
        """What the page is made of."""
        if name not in page:
            raise ApiError(404, f"the page has no file {name!r:.200}", code="unknown_route")
        return page[name].answer(request)

    @router.get("/debug/live")
    async def live() -> Response:
        """What the engine does now, see `EngineLive.now`, and what it is."""
        info = service.info
        told: dict[str, Any] = {
            "version": version("tokenloom"),
            "model": service.model_names[0],
            "max_model_len": info.max_model_len,
            "max_num_seqs": info.max_num_seqs,
            "max_queued_requests": info.max_queued_requests,
            "block_size": info.block_size,
            "plugins": info.plugins,
            "num_engine_restarts": service.num_engine_restarts,
            "is_draining": service.is_draining,
            "engine": await service.client.call("live"),
        }
        return Response(json_bytes(told), media_type="application/json", headers={"Cache-Control": "no-store"})

    return router


def _files() -> Iterator[tuple[str, _File]]:
    for path in (files("tokenloom.server") / "page").iterdir():
        body = path.read_bytes()
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        headers = {**_HEADERS, "Content-Type": _TYPES[path.name.rpartition(".")[2]], "ETag": tag}
        yield path.name, _File(body, headers)
