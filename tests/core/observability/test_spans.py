"""OpenTelemetry spans of requests, in memory; and what is refused."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tokenloom.clock import VirtualClock
from tokenloom.engine_output import RequestTimes
from tokenloom.errors import ConfigError
from tokenloom.observability.otel_spans import OtelSpans
from tokenloom.observability.request_trace import ChoiceTrace, RequestTrace
from tokenloom.observability.span_receiver import build_request_spans
from tokenloom.observability.spans import NoSpans
from tokenloom.sampling_params import SamplingParams

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CHOICE = ChoiceTrace(0, RequestTimes(10.0, 10.5, 11.0, 12.25), 12.25, 6, "stop")
TRACE = RequestTrace(
    headers={"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "authorization": "Bearer secret"},
    operation="chat",
    route="/v1/chat/completions",
    status=200,
    request_id="chatcmpl-1",
    http_request_id="mine-1",
    model="tiny",
    arrival_s=9.75,
    end_s=12.5,
    first_byte_s=11.25,
    params=SamplingParams(temperature=0.5, max_tokens=64, stop=["END"], seed=3),
    num_prompt_tokens=40,
    num_cached_tokens=32,
    choices=(CHOICE,),
)


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[OtelSpans]:
    spans = OtelSpans(SimpleSpanProcessor(exporter), VirtualClock(100.0))
    yield spans
    spans.close()


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    finished = exporter.get_finished_spans()
    found = {span.name: span for span in finished}
    assert len(found) == len(finished)
    return found


def seconds(span: ReadableSpan, start: ReadableSpan) -> tuple[float, float]:
    """Begin and end of a span, counted from the begin of another one."""
    assert span.start_time is not None
    assert span.end_time is not None
    assert start.start_time is not None
    return (span.start_time - start.start_time) / 1e9, (span.end_time - start.start_time) / 1e9


def test_request_has_a_span_with_its_phases(spans: OtelSpans, exporter: InMemorySpanExporter) -> None:
    spans.record(TRACE)
    found = by_name(exporter)
    request = found["chat tiny"]
    assert {name: seconds(span, request) for name, span in found.items()} == {
        "chat tiny": (0.0, 2.75),
        "queue": (0.25, 0.75),
        "prefill": (0.75, 1.25),
        "decode": (1.25, 2.5),
    }
    assert request.kind is SpanKind.SERVER
    assert request.context is not None
    for name in ("queue", "prefill", "decode"):
        parent = found[name].parent
        assert parent is not None
        assert parent.span_id == request.context.span_id
    (event,) = request.events
    assert request.start_time is not None
    assert (event.name, (event.timestamp - request.start_time) / 1e9) == ("first_byte", 1.5)
    assert request.status.status_code is StatusCode.UNSET


def test_attributes_follow_the_conventions_and_hold_no_text(spans: OtelSpans, exporter: InMemorySpanExporter) -> None:
    spans.record(TRACE)
    attributes = dict(by_name(exporter)["chat tiny"].attributes or {})
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "tokenloom",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.id": "chatcmpl-1",
        "tokenloom.http_request_id": "mine-1",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 40,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.stop_sequences": ("END",),
        "gen_ai.request.seed": 3,
        "tokenloom.usage.cached_tokens": 32,
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
    }


def test_trace_of_the_caller_goes_on(spans: OtelSpans, exporter: InMemorySpanExporter) -> None:
    spans.record(TRACE)
    parent = by_name(exporter)["chat tiny"].parent
    assert parent is not None
    assert (f"{parent.trace_id:032x}", f"{parent.span_id:016x}") == (TRACE_ID, PARENT_ID)


def test_caller_that_does_not_sample_gets_no_spans(spans: OtelSpans, exporter: InMemorySpanExporter) -> None:
    spans.record(replace(TRACE, headers={"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-00"}))
    assert exporter.get_finished_spans() == ()


@pytest.mark.parametrize("headers", [{}, {"traceparent": "nonsense"}, {"traceparent": f"00-{'0' * 32}-{PARENT_ID}-01"}])
def test_request_without_a_trace_begins_one(
    spans: OtelSpans, exporter: InMemorySpanExporter, headers: dict[str, str]
) -> None:
    spans.record(replace(TRACE, headers=headers))
    assert by_name(exporter)["chat tiny"].parent is None


def test_choices_have_phases_of_their_own(spans: OtelSpans, exporter: InMemorySpanExporter) -> None:
    queued = ChoiceTrace(1, RequestTimes(10.0, None, None, 12.0), None, 0, "abort")
    spans.record(replace(TRACE, choices=(CHOICE, queued), params=SamplingParams(n=2)))
    finished = exporter.get_finished_spans()
    indices = [(span.name, (span.attributes or {}).get("tokenloom.choice.index")) for span in finished]
    assert sorted(indices[:-1]) == [("decode", 0), ("prefill", 0), ("queue", 0), ("queue", 1)]
    assert finished[-1].attributes is not None
    assert finished[-1].attributes["gen_ai.request.choice.count"] == 2
    assert finished[-1].attributes["gen_ai.response.finish_reasons"] == ("stop", "abort")


@pytest.mark.parametrize(("status", "code"), [(400, StatusCode.UNSET), (503, StatusCode.ERROR)])
def test_errors_are_told(spans: OtelSpans, exporter: InMemorySpanExporter, status: int, code: StatusCode) -> None:
    spans.record(replace(TRACE, status=status, choices=(), params=None, first_byte_s=None, error="no engine"))
    span = by_name(exporter)["chat tiny"]
    assert span.status.status_code is code
    assert span.attributes is not None
    assert span.attributes["error.type"] == str(status)
    assert [(event.name, dict(event.attributes or {})) for event in span.events] == [
        ("error", {"message": "no engine"})
    ]


# ---- where they go ----


def test_no_endpoint_records_nothing() -> None:
    spans = build_request_spans(None)
    assert isinstance(spans, NoSpans)
    spans.record(TRACE)
    spans.close()


@pytest.mark.parametrize("endpoint", ["localhost:4317", "grpc://host:4317", "http://", ""])
def test_endpoint_that_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.otel_endpoint=.*http://localhost:4318"):
        build_request_spans(endpoint)


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"tokenloom\[otel\]"):
        build_request_spans("http://localhost:4318")


def test_spans_reach_the_receiver_under_a_service_name() -> None:
    received: list[tuple[str, bytes]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        spans = build_request_spans(f"http://127.0.0.1:{server.server_port}")
        spans.record(TRACE)
        spans.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    ((path, body),) = received
    message = ExportTraceServiceRequest.FromString(body)
    resource = {pair.key: pair.value.string_value for pair in message.resource_spans[0].resource.attributes}
    names = [span.name for span in message.resource_spans[0].scope_spans[0].spans]
    assert (path, resource["service.name"]) == ("/v1/traces", "tokenloom")
    assert sorted(names) == ["chat tiny", "decode", "prefill", "queue"]
