"""What FastAPI's OpenAPI document cannot know by itself: bodies that we read, errors that we write, and API keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, Field
from pydantic.json_schema import models_json_schema

from tokenloom.server.gate import OPEN_PATHS

__all__ = ["ERRORS", "ErrorBody", "Responses", "body_schema", "with_bodies"]


class ErrorDetail(BaseModel):
    """What was wrong."""

    message: str
    type: str
    param: str | None = Field(description="The field at fault.")
    code: str | None = Field(description="A word for programs.")


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetail


Responses = dict[int | str, dict[str, Any]]

ERRORS: Responses = {
    400: {"model": ErrorBody, "description": "The request can never run as asked."},
    401: {"model": ErrorBody, "description": "No API key, or a wrong one."},
    404: {"model": ErrorBody, "description": "No such model."},
    408: {"model": ErrorBody, "description": "The body did not come in time."},
    413: {"model": ErrorBody, "description": "The body is too large."},
    415: {"model": ErrorBody, "description": "The body is not JSON."},
    429: {"model": ErrorBody, "description": "The server is full; see Retry-After."},
    500: {"model": ErrorBody, "description": "A fault of the server."},
    503: {"model": ErrorBody, "description": "There is no engine now; see Retry-After."},
}


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """How OpenAPI describes an endpoint's body, which is read here and not by FastAPI."""
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


def with_bodies(schema: dict[str, Any], bodies: Iterable[type[BaseModel]], *, has_keys: bool) -> dict[str, Any]:
    """Returns the document with schemas of `bodies`, and what needs a key marked as such."""
    _, definitions = models_json_schema(
        [(body, "validation") for body in bodies], ref_template="#/components/schemas/{model}"
    )
    components = schema.setdefault("components", {})
    components.setdefault("schemas", {}).update(definitions["$defs"])
    if has_keys:
        components["securitySchemes"] = {"api_key": {"type": "http", "scheme": "bearer"}}
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            # FastAPI's answer to what it refuses itself, which is nothing here.
            operation["responses"].pop("422", None)
            if has_keys:
                operation["security"] = [] if path in OPEN_PATHS else [{"api_key": []}]
    for name in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(name, None)
    return schema
