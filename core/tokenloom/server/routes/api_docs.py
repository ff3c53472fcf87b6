"""GET /docs: the OpenAPI document as a page that needs nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Response

__all__ = ["api_docs_routes"]

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%;margin:.5rem 0 1rem}"
    "td,th{border-bottom:1px solid #8884;padding:.25rem .75rem .25rem 0;text-align:left;vertical-align:top}"
    "code{font:14px ui-monospace,monospace}h2{margin-top:2.5rem}:root{color-scheme:light dark}"
)


def api_docs_routes(openapi: Callable[[], Mapping[str, Any]]) -> APIRouter:
    """The page. `openapi` gives the document."""
    router = APIRouter(include_in_schema=False)

    @router.get("/docs")
    async def docs() -> Response:
        """Every endpoint, and the fields that it takes."""
        document = openapi()
        info = document["info"]
        title = f"{escape(info['title'])} {escape(info['version'])}"
        head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"
        intro = (
            f"<h1>{title}</h1><p>{escape(info['description'])} The same for programs: "
            '<a href="/openapi.json">/openapi.json</a>.</p>'
        )
        return Response(head + intro + "".join(_operations(document)), media_type="text/html; charset=utf-8")

    return router


def _operations(document: Mapping[str, Any]) -> Iterator[str]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
            yield f"<p>{escape(operation.get('description', ''))}</p>"
            body = operation.get("requestBody")
            if body is not None:
                name = body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
                yield _fields(document["components"]["schemas"][name])
            statuses = ", ".join(escape(status) for status in operation["responses"])
            yield f"<p>Answers with status {statuses}.</p>"


def _fields(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        f"<tr><td><code>{escape(name)}</code>{' (required)' if name in required else ''}<td>{escape(_type(field))}"
        f"<td>{escape(field.get('description', ''))}"
        for name, field in schema["properties"].items()
    ]
    return f"<table><tr><th>field<th>type<th>meaning{''.join(rows)}</table>"


def _type(field: Mapping[str, Any]) -> str:
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "anyOf" in field:
        return " or ".join(dict.fromkeys(_type(part) for part in field["anyOf"] if part.get("type") != "null"))
    if "enum" in field or "const" in field:
        return " or ".join(map(str, field.get("enum", [field.get("const")])))
    kind = str(field.get("type", "any"))
    if kind == "array":
        kind = f"list of {_type(field.get('items', {}))}"
    low, high = field.get("minimum"), field.get("maximum")
    return kind if low is None or high is None else f"{kind}, {low} to {high}"
