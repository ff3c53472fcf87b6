"""Where requests go and what they look like: URLs, headers and bodies of an OpenAI-compatible server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit, urlunsplit

import msgspec

from tokenloom.errors import ConfigError

__all__ = ["Api", "Endpoint", "Prompt", "parse_base_url", "parse_extra_body"]

Api = Literal["completions", "chat"]
Prompt = Sequence[int] | str
"""Token ids, or text; in a chat the text is what the user says."""

_OWN_FIELDS = frozenset({"model", "prompt", "messages", "stream", "n", "max_tokens", "max_completion_tokens"})
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route of one server, with the model to ask for.

    Attributes:
        base_url: up to and with the version, "http://localhost:8000/v1".
        api: completions or chat.
        model: its name on that server.
        api_key: sent as a bearer token; never part of a result.
        extra_body: fields that join the body of every request and may replace those that are not `_OWN_FIELDS`.
        timeout_s: for a whole request.
    """

    base_url: str
    api: Api
    model: str
    api_key: str | None = None
    extra_body: Mapping[str, Any] | None = None
    timeout_s: float = 600.0

    @property
    def url(self) -> str:
        """Of the route."""
        return f"{self.base_url}/{'chat/completions' if self.api == 'chat' else 'completions'}"

    @property
    def headers(self) -> dict[str, str]:
        """Of every request. A compressed stream would arrive in lumps."""
        key = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        return {"Content-Type": "application/json", "Accept-Encoding": "identity", **key}

    def streaming_body(self, prompt: Prompt, max_tokens: int, extra: Mapping[str, Any] | None = None) -> bytes:
        """The body of a greedy streamed request whose last chunk counts the tokens; `extra` fields join it last."""
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return _encode({**self._body(prompt, max_tokens), **stream, **(self.extra_body or {}), **(extra or {})})

    def plain_body(self, prompt: Prompt, max_tokens: int, extra: Mapping[str, Any] | None = None) -> bytes:
        """The body of a greedy request that is answered at once; `extra` fields join it last."""
        own = {key: value for key, value in (self.extra_body or {}).items() if key != "stream_options"}
        return _encode({**self._body(prompt, max_tokens), "stream": False, **own, **(extra or {})})

    def _body(self, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
        own: dict[str, Any] = {"prompt": prompt}
        if self.api == "chat":
            assert isinstance(prompt, str), "a chat takes no token ids"
            own = {"messages": [{"role": "user", "content": prompt}]}
        return {"model": self.model, **own, "max_tokens": max_tokens, "temperature": 0.0}


def parse_base_url(text: str, key: str = "base_url") -> str:
    """A base URL without a slash at its end; "/v1" joins one that names no path.

    Raises:
        ConfigError: it is no URL of a server, or holds a password, which would land in results.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{key}={text}: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{key}={text}: expected a URL such as http://localhost:8000")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"{key}: a URL must not hold a user or a password; use api_key=")
    if parts.query or parts.fragment:
        raise ConfigError(f"{key}={text}: a base URL has no query and no fragment")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    netloc = host if port is None else f"{host}:{port}"
    return urlunsplit(SplitResult(parts.scheme, netloc, parts.path.rstrip("/") or "/v1", "", ""))


def parse_extra_body(text: str | None, key: str = "extra_body") -> dict[str, Any]:
    """The JSON object that a user wants in every body.

    Raises:
        ConfigError: it is none, or holds a field that the load generator sets itself.
    """
    if text is None:
        return {}
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{key}={text}: no JSON: {error}; e.g. {key}='{{\"ignore_eos\": true}}'") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"{key}={text}: expected a JSON object, e.g. '{{\"ignore_eos\": true}}'")
    if taken := _OWN_FIELDS & set(fields):
        raise ConfigError(f"{key}: {', '.join(sorted(taken))} are set by the load generator; drop them")
    return fields
