"""From an HTTP request to a checked body: read within its limits, parsed, and its types checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from tokenloom.server.api_errors import ApiError
from tokenloom.server.exchange import RequestContext
from tokenloom.server.field_policy import check_fields
from tokenloom.server.gate import ARRIVAL, REQUEST_ID, TENANT
from tokenloom.server.generation_body import GenerationBody
from tokenloom.server.service import Service

__all__ = ["ReadRequest", "parse_object", "read_request", "validate_body"]

BodyModel = TypeVar("BodyModel", bound=BaseModel)

IGNORED_HEADER = "X-Ignored-Fields"
_MAX_SHOWN_FAULTS = 5
_MAX_SHOWN_INPUT = 80
_JSON = json.JSONEncoder(ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class ReadRequest(Generic[BodyModel]):
    """A request with a checked body, and headers for its answer."""

    body: BodyModel
    context: RequestContext
    headers: dict[str, str]


async def read_request(service: Service, request: Request, model: type[BodyModel]) -> ReadRequest[BodyModel]:
    """Reads and checks a body.

    Raises:
        ApiError: it is too large, no JSON, or not what the endpoint takes; or the model is not served here.
    """
    data = await _read(service, request)
    fields = parse_object(data)
    ignored = check_fields(fields, model.model_fields)
    body = validate_body(model, fields)
    name = body.model if isinstance(body, GenerationBody) else fields.get("model")
    scope = request.scope
    context = RequestContext(
        scope[REQUEST_ID], scope[TENANT], service.check_model(name), scope[ARRIVAL], num_body_bytes=len(data)
    )
    # Nothing is ignored in silence, though clients of other servers send much that means nothing here.
    headers = {IGNORED_HEADER: ", ".join(map(_header_word, ignored))} if ignored else {}
    return ReadRequest(body, context, headers)


async def _read(service: Service, request: Request) -> bytes:
    """The whole body, with or without a Content-Length.

    Raises:
        ApiError: 413 when it is too large, 408 when it does not come in time, 415 when it is not JSON, 400 when the
            client went away, 503 when the server cannot wait for it.
    """
    max_bytes, timeout_s = service.settings.max_body_bytes, service.settings.read_timeout_s
    _check_media_type(request.headers.get("content-type"))
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length) > max_bytes:
        raise _too_large(max_bytes, f"it has {length} bytes")
    parts: list[bytes] = []
    num_bytes = 0
    try:
        async with service.reading():
            async for part in request.stream():
                num_bytes += len(part)
                if num_bytes > max_bytes:
                    raise _too_large(max_bytes, "it goes on")
                parts.append(part)
    except TimeoutError:
        raise ApiError(
            408, f"the request's body did not come within {timeout_s:g} s; send it faster", code="body_timeout"
        ) from None
    except ClientDisconnect:
        raise ApiError(400, "the client went away before its request was complete") from None
    return b"".join(parts)


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object that a body holds. NaN and Infinity are no JSON.

    Raises:
        ApiError: 400, it holds something else.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise ApiError(400, f"the request's body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "the request's body is nested too deeply", code="invalid_json") from None
    if not isinstance(value, dict):
        raise ApiError(400, f"the request's body must be a JSON object, got {_shown(value)}", code="invalid_json")
    return value


def validate_body(model: type[BodyModel], fields: Mapping[str, Any]) -> BodyModel:
    """Checks the types of all fields.

    Raises:
        ApiError: 400, with every fault found; `param` is the first field at fault.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        shown_faults = faults[:_MAX_SHOWN_FAULTS]
        lines = [_fault(fault["loc"], fault["type"], fault["msg"], fault["input"]) for fault in shown_faults]
        more = len(faults) - len(lines)
        shown = "; ".join(lines) + (f"; and {more} more" if more > 0 else "")
        raise ApiError(400, shown, param=_path(faults[0]["loc"]) or None) from None
    except RecursionError:
        raise ApiError(400, "the request's fields are nested too deeply") from None


def _check_media_type(content_type: str | None) -> None:
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        # Also keeps web pages of other origins out: a browser asks before it sends this type across origins.
        raise ApiError(
            415,
            f"the body must be JSON with the header 'Content-Type: application/json', got {kind or 'no type'}",
            code="unsupported_media_type",
        )


def _too_large(max_bytes: int, problem: str) -> ApiError:
    return ApiError(
        413,
        f"the request's body may have {max_bytes} bytes at most, and {problem}; send less, or raise "
        "server.max_body_bytes",
        code="body_too_large",
    )


def _fault(loc: tuple[int | str, ...], kind: str, message: str, value: object) -> str:
    text = re.sub(r"^(Input|String|List|Dictionary|Value) should ", "must ", message.removeprefix("Value error, "))
    text = re.sub(r"a valid dictionary( or instance of \w+)?", "an object", text)
    what = text.replace(" after validation", "")
    where = _path(loc)
    got = "" if kind in ("value_error", "missing") else f", got {_shown(value)}"
    if kind == "missing":
        return f"{where} is required"
    return f"{where}: {what}{got}" if where else f"{what}{got}"


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _shown(value: object) -> str:
    text = ""
    try:
        # Looks at no more of a long list than is shown.
        for part in _JSON.iterencode(value):
            text += part
            if len(text) > _MAX_SHOWN_INPUT:
                break
    except (ValueError, TypeError, RecursionError):
        # Python refuses to write integers of many thousand digits.
        return f"a {type(value).__name__} too long to show"
    return text if len(text) <= _MAX_SHOWN_INPUT else f"{text[:_MAX_SHOWN_INPUT]}..."


def _header_word(name: str) -> str:
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in name[:64])
