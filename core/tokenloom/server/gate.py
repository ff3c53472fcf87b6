"""Pure ASGI middleware: gives each request an id, and lets in whoever may."""

from __future__ import annotations

import logging
import re
import secrets
from typing import final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenloom.clock import Clock, MonotonicClock
from tokenloom.observability.front_end_metrics import FrontEndMetrics
from tokenloom.server.api_errors import ApiError, error_response
from tokenloom.server.auth import ApiKeys

__all__ = ["ARRIVAL", "OPEN_PATHS", "REQUEST_ID", "TENANT", "Gate"]

OPEN_PATHS = frozenset({"/health", "/ready", "/ping"})
"""Paths that need no key: whoever watches the server asks them."""

ARRIVAL, REQUEST_ID, TENANT = "tokenloom.arrival_s", "tokenloom.request_id", "tokenloom.tenant"
"""What the gate puts into a request's scope."""

_log = logging.getLogger(__name__)
_LEGAL_ID = re.compile(r"[\x21-\x7e]{1,128}")


@final
class Gate:
    """Wraps an app. Whatever it answers bears X-Request-Id: the client's own, or a new one.

    Args:
        app: to wrap.
        keys: who may use it.
        metrics: count who may not.
        open_paths: what needs no key beside `OPEN_PATHS`; of one that ends in "/", everything below.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: ApiKeys,
        metrics: FrontEndMetrics,
        open_paths: frozenset[str] = frozenset(),
        clock: Clock | None = None,
    ) -> None:
        self._app = app
        self._keys = keys
        self._metrics = metrics
        self._open_paths = OPEN_PATHS | open_paths
        self._clock = MonotonicClock() if clock is None else clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        asked = headers.get("x-request-id", "")
        request_id = asked if _LEGAL_ID.fullmatch(asked) else f"req-{secrets.token_hex(12)}"
        scope[ARRIVAL], scope[REQUEST_ID] = self._clock.now(), request_id

        has_begun = False

        async def send_with_id(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        if not self._is_open(scope["path"]):
            try:
                scope[TENANT] = self._keys.tenant(headers.get("authorization"))
            except ApiError as error:
                if scope["method"] == "POST":
                    self._metrics.observe_refusal("unauthorized")
                await error_response(error)(scope, receive, send_with_id)
                return
        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            _log.exception("request %s failed", request_id)
            if scope["method"] == "POST":
                self._metrics.observe_refusal("internal")
            if has_begun:
                raise
            # Here, since beyond this middleware an answer would bear neither the id nor what CORS adds.
            failure = ApiError(500, "the server made a mistake; its log says more", code="internal_error")
            await error_response(failure)(scope, receive, send_with_id)

    def _is_open(self, path: str) -> bool:
        return path in self._open_paths or any(
            path.startswith(p) for p in self._open_paths if p.endswith("/") and p != "/"
        )
