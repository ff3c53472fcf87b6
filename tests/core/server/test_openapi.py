"""The OpenAPI document, and the page that shows it."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.core.server.served_app import ServedApp

PATHS = {
    "/v1/completions",
    "/v1/chat/completions",
    "/tokenize",
    "/detokenize",
    "/v1/models",
    "/v1/models/{name}",
    "/health",
    "/ping",
    "/ready",
    "/version",
    "/metrics",
}


def test_the_document_has_every_path_and_every_field(api: ServedApp) -> None:
    document = api.get("/openapi.json").json
    assert set(document["paths"]) == PATHS
    fields = document["components"]["schemas"]["ChatBody"]["properties"]
    assert {"messages", "top_k", "tool_choice", "priority", "response_format"} <= set(fields)
    assert all("description" in field for name, field in fields.items() if name != "stream_options")
    errors = document["paths"]["/v1/completions"]["post"]["responses"]
    assert {"400", "401", "404", "408", "413", "415", "429", "500", "503"} <= set(errors)
    assert "422" not in api.get("/openapi.json").body.decode()
    assert "securitySchemes" not in document["components"]


def test_with_keys_the_document_says_what_needs_one(serve: Callable[..., ServedApp]) -> None:
    app = serve(api_keys=("secret",))
    document = app.get("/openapi.json", headers={"Authorization": "Bearer secret"}).json
    assert document["paths"]["/v1/completions"]["post"]["security"] == [{"api_key": []}]
    assert document["paths"]["/health"]["get"]["security"] == []


def test_the_page_shows_all_of_it_and_needs_nothing_from_elsewhere(api: ServedApp) -> None:
    page = api.get("/docs").body.decode()
    for path in PATHS:
        assert path in page
    assert "<code>repetition_penalty</code>" in page
    assert not re.search(r"(src|href)=.?https?:", page)


def test_web_pages_of_listed_origins_may_call(serve: Callable[..., ServedApp]) -> None:
    app = serve(cors_origins=("https://example.com",), api_keys=("secret",))
    asks = {"Origin": "https://example.com", "Access-Control-Request-Method": "POST"}
    allowed = app.ask("OPTIONS", "/v1/completions", headers=asks)
    assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (200, "https://example.com")
    refused = app.get("/health", headers={"Origin": "https://other.example"})
    assert "access-control-allow-origin" not in refused.headers
