"""URLs and bodies."""

from __future__ import annotations

import json

import pytest

from tokenloom.errors import ConfigError
from tokenloom.load_generator.endpoint import Endpoint, parse_base_url, parse_extra_body


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1"),
        ("http://localhost:8000/", "http://localhost:8000/v1"),
        ("https://host.example/v1/", "https://host.example/v1"),
        ("http://localhost:8000/v3", "http://localhost:8000/v3"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_a_base_url_gets_a_version_where_it_has_no_path(text: str, url: str) -> None:
    assert parse_base_url(text) == url


@pytest.mark.parametrize(
    "text",
    ["localhost:8000", "ftp://host", "http://", "http://h:port", "http://u:p@h", "http://h/v1?x=1", "http://h#f"],
)
def test_other_urls_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^a") as caught:
        parse_base_url(text, "a")
    assert "u:p" not in str(caught.value)


def test_extra_fields_join_and_replace() -> None:
    endpoint = Endpoint(
        "http://h/v1", "chat", "m", "secret", parse_extra_body('{"temperature": 1, "ignore_eos": true}')
    )
    body = json.loads(endpoint.streaming_body("Hi", 3))
    assert body["messages"] == [{"role": "user", "content": "Hi"}]
    assert (body["temperature"], body["ignore_eos"], body["max_tokens"], body["stream"]) == (1, True, 3, True)
    assert endpoint.url == "http://h/v1/chat/completions"
    assert endpoint.headers["Authorization"] == "Bearer secret"
    # A compressed stream would come in lumps.
    assert endpoint.headers["Accept-Encoding"] == "identity"


def test_a_plain_request_has_no_options_of_a_stream() -> None:
    extra = parse_extra_body('{"stream_options": {"continuous_usage_stats": true}, "top_k": 1}')
    endpoint = Endpoint("http://h/v1", "completions", "m", extra_body=extra)
    plain = json.loads(endpoint.plain_body([1, 2], 3, {"logprobs": 1}))
    assert plain == {
        "model": "m",
        "prompt": [1, 2],
        "max_tokens": 3,
        "temperature": 0.0,
        "stream": False,
        "top_k": 1,
        "logprobs": 1,
    }
    assert json.loads(endpoint.streaming_body([1], 1))["stream_options"] == {"continuous_usage_stats": True}
    assert "Authorization" not in endpoint.headers


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"stream": false}', '{"n": 2}', '{"model": "x", "prompt": "y"}'])
def test_other_extra_bodies_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="extra_body"):
        parse_extra_body(text)
