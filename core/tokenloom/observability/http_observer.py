"""ASGI middleware that counts HTTP requests and measures them to their last byte."""

from __future__ import annotations

from typing import final

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenloom.clock import Clock, MonotonicClock
from tokenloom.observability.front_end_metrics import FrontEndMetrics

__all__ = ["HttpObserver"]

_CLIENT_LEFT = 499
_FAILED = 500
_OTHER_ROUTE = "other"


@final
class HttpObserver:
    """Wraps an app. The outermost middleware, so that nothing is answered behind its back."""

    def __init__(self, app: ASGIApp, metrics: FrontEndMetrics, clock: Clock | None = None) -> None:
        self._app = app
        self._metrics = metrics
        self._clock = MonotonicClock() if clock is None else clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_s, status, is_complete, has_left = self._clock.now(), _FAILED, False, False

        async def watched_send(message: Message) -> None:
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                is_complete = True

        async def watched_receive() -> Message:
            nonlocal has_left
            message = await receive()
            # Also said behind a complete answer, where it means nothing.
            if message["type"] == "http.disconnect" and not is_complete:
                has_left = True
            return message

        self._metrics.begin_request()
        try:
            await self._app(scope, watched_receive, watched_send)
        finally:
            # An answer that breaks off has failed, whatever its head said.
            shown = _CLIENT_LEFT if has_left else status if is_complete else _FAILED
            self._metrics.end_request(_route_of(scope), shown, self._clock.now() - start_s)


def _route_of(scope: Scope) -> str:
    """The pattern that a request was routed by; paths that nothing serves share one name."""
    route = scope.get("route")
    return route.path if isinstance(route, Route) else _OTHER_ROUTE
