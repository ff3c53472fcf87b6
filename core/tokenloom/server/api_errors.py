"""Errors as clients see them: an HTTP status and one body shape, {"error": {message, type, param, code}}."""

from __future__ import annotations

import math
from typing import Any, final

import msgspec
from starlette.responses import Response

from tokenloom.errors import EngineDeadError, OverloadedError, RequestError, TokenloomError

__all__ = ["ApiError", "api_error", "error_body", "error_response", "unavailable"]


@final
class ApiError(Exception):
    """An answer that is an error.

    Attributes:
        status: of HTTP.
        message: what was wrong, the value, what is allowed, what to try.
        param: the field at fault, if there is one.
        code: a word for programs, such as "model_not_found".
        retry_after_s: when to try again, for clients that do so by themselves.
        has_reached_engine: the engine had taken the request, or refused it and counted that.
        headers: that belong to the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
        self.has_reached_engine = False
        self.headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
        if status == 401:
            self.headers["WWW-Authenticate"] = "Bearer"
        if status in (408, 413, 431):
            # The rest of the request is not read, so nothing else can be sent over this connection.
            self.headers["Connection"] = "close"


_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "overloaded_error"}


def error_body(error: ApiError) -> bytes:
    """The body of an error, as JSON."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    # A message may repeat what a user sent; half a surrogate pair cannot be written as UTF-8.
    message = error.message.encode("utf-8", "backslashreplace").decode()
    body: dict[str, Any] = {"message": message, "type": kind, "param": error.param, "code": error.code}
    return msgspec.json.encode({"error": body})


def error_response(error: ApiError) -> Response:
    """The answer that tells of an error."""
    return Response(error_body(error), error.status, error.headers, "application/json")


def api_error(error: TokenloomError, retry_after_s: int) -> ApiError:
    """What a client is told of an error of ours."""
    if isinstance(error, RequestError):
        return ApiError(400, str(error), param=error.param, code=error.code)
    if isinstance(error, OverloadedError):
        told_s = error.retry_after_s
        wait_s = retry_after_s if told_s is None else max(retry_after_s, math.ceil(told_s))
        return ApiError(429, str(error), code="overloaded", retry_after_s=wait_s)
    if isinstance(error, EngineDeadError):
        return unavailable(str(error), retry_after_s)
    return ApiError(500, str(error), code="internal_error")


def unavailable(message: str, retry_after_s: int) -> ApiError:
    """The engine is not there, or takes no more requests."""
    return ApiError(503, message, code="engine_unavailable", retry_after_s=retry_after_s)
