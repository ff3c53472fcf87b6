"""Where the spans of requests go: to an OpenTelemetry receiver, or nowhere."""

from __future__ import annotations

from urllib.parse import urlsplit

from tokenloom.errors import ConfigError
from tokenloom.observability.spans import NoSpans, RequestSpans

__all__ = ["build_request_spans"]

_TRACES_PATH = "/v1/traces"
_EXPORT_TIMEOUT_S = 3
"""Retries included: what a receiver that does not answer may add to a shutdown."""


def build_request_spans(endpoint: str | None) -> RequestSpans:
    """Spans that go to `server.otel_endpoint`; None records none.

    What OpenTelemetry reads from its own environment variables holds, too: headers, sampling, service name, limits.

    Raises:
        ConfigError: it is no HTTP address, or the packages of the extra `otel` are not installed.
    """
    if endpoint is None:
        return NoSpans()
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(
            f"server.otel_endpoint={endpoint}: expected the address of an OTLP receiver over HTTP, such as "
            "http://localhost:4318"
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from tokenloom.observability.otel_spans import OtelSpans
    except ImportError as error:
        raise ConfigError(
            f"server.otel_endpoint={endpoint} needs the packages of the extra 'otel' ({error.name} is missing): "
            "pip install 'tokenloom[otel]', or leave the key out"
        ) from error
    address = endpoint if parts.path.strip("/") else endpoint.rstrip("/") + _TRACES_PATH
    return OtelSpans(BatchSpanProcessor(OTLPSpanExporter(endpoint=address, timeout=_EXPORT_TIMEOUT_S)))
