"""GET /debug/profile: a timeline of the engine's next steps."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from fastapi import APIRouter, Request, Response

from tokenloom.errors import RequestError
from tokenloom.observability.timeline import MAX_RECORDED_STEPS
from tokenloom.server.answer_parts import json_bytes
from tokenloom.server.api_errors import ApiError
from tokenloom.server.service import Service

__all__ = ["profile_routes"]

_DEFAULT_STEPS, _DEFAULT_TIMEOUT_S, _MAX_TIMEOUT_S = 50, 10.0, 300.0
_POLL_S = 0.25
_CLIENT_LEFT = 499


def profile_routes(service: Service) -> APIRouter:
    """The endpoint that profiles. Not part of the API that OpenAPI describes: it is for whoever runs the server."""
    router = APIRouter(include_in_schema=False)

    @router.get("/debug/profile")
    async def profile(request: Request) -> Response:
        """A Chrome trace of the next `steps` steps, or of those that ran within `timeout_s`, or before a drain."""
        steps = _steps(request.query_params.get("steps"))
        timeout_s = _timeout_s(request.query_params.get("timeout_s"))
        number = await service.client.call("profile_start", steps=steps)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while True:
            left_s = deadline_s - loop.time()
            trace = await _take(service, number, only_done=left_s > 0.0 and not service.is_draining)
            if trace is not None:
                break
            if await request.is_disconnected():
                return Response(status_code=_CLIENT_LEFT)
            await asyncio.sleep(min(_POLL_S, left_s))
        headers = {"Content-Disposition": 'attachment; filename="trace.json"'}
        return Response(json_bytes(trace), media_type="application/json", headers=headers)

    return router


async def _take(service: Service, number: int, *, only_done: bool) -> Any:
    """The trace of a profile; None while it is not done, if only that will do."""
    try:
        return await service.client.call("profile_take", number=number, only_done=only_done)
    except RequestError as error:
        raise ApiError(409, str(error), code="conflict") from error


def _steps(text: str | None) -> int:
    is_number = text is not None and text.isascii() and text.isdigit() and len(text) <= len(str(MAX_RECORDED_STEPS))
    steps = int(text or 0) if is_number else _DEFAULT_STEPS if text is None else 0
    if not 1 <= steps <= MAX_RECORDED_STEPS:
        raise RequestError(f"steps={text!r:.80} must be a whole number from 1 to {MAX_RECORDED_STEPS}", "steps")
    return steps


def _timeout_s(text: str | None) -> float:
    try:
        seconds = _DEFAULT_TIMEOUT_S if text is None else float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds <= _MAX_TIMEOUT_S:
        raise RequestError(f"timeout_s={text!r:.80} must be seconds from 0 to {_MAX_TIMEOUT_S:.0f}", "timeout_s")
    return seconds
