"""The HTTP application of one front end."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Lifespan

from tokenloom.errors import TokenloomError
from tokenloom.observability.http_observer import HttpObserver
from tokenloom.observability.metric_table import RefusalReason
from tokenloom.server.api_errors import ApiError, api_error, error_response
from tokenloom.server.chat_body import ChatBody
from tokenloom.server.completion_body import CompletionBody
from tokenloom.server.gate import Gate
from tokenloom.server.openapi_bodies import with_bodies
from tokenloom.server.routes.api_docs import api_docs_routes
from tokenloom.server.routes.generation import generation_routes
from tokenloom.server.routes.profile import profile_routes
from tokenloom.server.routes.status import status_routes
from tokenloom.server.routes.text import DetokenizeBody, TokenizeBody, text_routes
from tokenloom.server.service import Service

__all__ = ["build_app"]

_DESCRIPTION = "Text from a language model, over the API that OpenAI's clients speak."
_BODIES = (CompletionBody, ChatBody, TokenizeBody, DetokenizeBody)


def build_app(
    service: Service,
    *,
    routers: Sequence[APIRouter] = (),
    open_paths: frozenset[str] = frozenset(),
    lifespan: Lifespan[FastAPI] | None = None,
) -> FastAPI:
    """The application.

    Args:
        service: what its routes share.
        routers: further routes, such as those of the page.
        open_paths: of these, what needs no API key; see `Gate`.
        lifespan: what begins and ends with the server.
    """
    app = FastAPI(
        title="tokenloom",
        version=version("tokenloom"),
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    for router in (
        *(generation_routes(service), text_routes(service), status_routes(service), profile_routes(service)),
        *routers,
    ):
        app.include_router(router)
    _handle_errors(app, service)
    # The one that is added last is the outermost.
    app.add_middleware(Gate, keys=service.keys, metrics=service.metrics, open_paths=open_paths)
    if service.settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.settings.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "X-Ignored-Fields", "Retry-After"],
        )
    app.add_middleware(HttpObserver, metrics=service.metrics)

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            app.openapi_schema = with_bodies(schema, _BODIES, has_keys=bool(service.keys))
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    app.include_router(api_docs_routes(openapi))
    return app


def _handle_errors(app: FastAPI, service: Service) -> None:
    def answer(request: Request, error: ApiError) -> Response:
        if error.status == 503:
            error.headers.setdefault("Retry-After", str(service.settings.retry_after_s))
        if request.method == "POST" and not error.has_reached_engine:
            service.metrics.observe_refusal(_reason(error.status))
        return error_response(error)

    @app.exception_handler(ApiError)
    async def api(request: Request, error: ApiError) -> Response:
        return answer(request, error)

    @app.exception_handler(TokenloomError)
    async def ours(request: Request, error: TokenloomError) -> Response:
        return answer(request, api_error(error, service.settings.retry_after_s))

    @app.exception_handler(RecursionError)
    async def deep(request: Request, _: RecursionError) -> Response:
        return answer(request, ApiError(400, "the request's fields are nested too deeply"))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        return error_response(_of_routing(request, error))


_REASONS: dict[int, RefusalReason] = {401: "unauthorized", 413: "too_large", 429: "overloaded", 503: "unavailable"}


def _reason(status: int) -> RefusalReason:
    return _REASONS.get(status, "invalid" if status < 500 else "internal")


def _of_routing(request: Request, error: HTTPException) -> ApiError:
    """Starlette's own refusals in our form."""
    path, method = request.url.path, request.method
    if error.status_code == 404:
        return ApiError(404, f"there is no {method} {path:.200}; see /docs for what there is", code="unknown_route")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        told = ApiError(405, f"{path} does not take {method}, but {allowed}", code="method_not_allowed")
        told.headers["Allow"] = allowed
        return told
    return ApiError(error.status_code, str(error.detail))
