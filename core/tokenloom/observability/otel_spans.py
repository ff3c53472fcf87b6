"""OpenTelemetry spans of requests, made when they are done: the request, and its choices' queue, prefill and decode.

Attributes follow OpenTelemetry's conventions for HTTP and for generative AI where these have a word.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import final

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tokenloom.clock import Clock, MonotonicClock
from tokenloom.observability.request_trace import ChoiceTrace, RequestTrace
from tokenloom.observability.spans import RequestSpans
from tokenloom.sampling_params import SamplingParams

__all__ = ["OtelSpans"]

_Attributes = dict[str, str | int | float | list[str]]
_NS_PER_S = 1_000_000_000
_SERVER_FAULT = 500
_SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "max_tokens": "max_tokens",
    "seed": "seed",
    "stop_sequences": "stop",
}
"""gen_ai.request.* -> field of SamplingParams; those at their default are left out."""


@final
class OtelSpans(RequestSpans):
    """Spans for one processor, which exports them."""

    def __init__(self, processor: SpanProcessor, clock: Clock | None = None) -> None:
        """`clock` is the one that traces' times are on."""
        self._clock = MonotonicClock() if clock is None else clock
        named = Resource({SERVICE_NAME: "tokenloom"}).merge(OTELResourceDetector().detect())
        # Not the global provider: a program that holds this server keeps its own.
        self._provider = TracerProvider(resource=Resource.create().merge(named), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("tokenloom")
        self._propagator = TraceContextTextMapPropagator()

    def record(self, trace: RequestTrace) -> None:
        # The time of day may be set right at any moment, so its distance to the engine's clock is taken anew.
        offset_ns = time.time_ns() - round(self._clock.now() * _NS_PER_S)
        context = self._propagator.extract(dict(trace.headers))
        _Recorder(self._tracer, offset_ns).record(trace, context)

    def close(self) -> None:
        self._provider.shutdown()


@final
@dataclass(frozen=True, slots=True)
class _Recorder:
    """`offset_ns` turns the engine's time into the time of day."""

    tracer: Tracer
    offset_ns: int

    def record(self, trace: RequestTrace, parent: Context) -> None:
        span = self.tracer.start_span(
            f"{trace.operation} {trace.model}",
            parent,
            SpanKind.SERVER,
            _request_attributes(trace),
            start_time=self._ns(trace.arrival_s),
        )
        if trace.first_byte_s is not None:
            span.add_event("first_byte", timestamp=self._ns(trace.first_byte_s))
        if trace.error is not None:
            span.add_event("error", {"message": trace.error}, self._ns(trace.end_s))
        if trace.status >= _SERVER_FAULT:
            span.set_status(Status(StatusCode.ERROR, trace.error))
        if span.is_recording():
            self._record_choices(trace, span)
        span.end(self._ns(trace.end_s))

    def _record_choices(self, trace: RequestTrace, parent: Span) -> None:
        context = set_span_in_context(parent)
        for choice in trace.choices:
            times = choice.times
            end_s = trace.end_s if times.finish_s is None else times.finish_s
            first_step_s, first_token_s = times.first_scheduled_s, times.first_token_s
            self._child("queue", times.arrival_s, end_s if first_step_s is None else first_step_s, choice, context)
            if first_step_s is not None:
                self._child("prefill", first_step_s, end_s if first_token_s is None else first_token_s, choice, context)
            if first_token_s is not None:
                last_s = first_token_s if choice.last_token_s is None else choice.last_token_s
                self._child("decode", first_token_s, last_s, choice, context)

    def _child(self, phase: str, start_s: float, end_s: float, choice: ChoiceTrace, context: Context) -> None:
        attributes: _Attributes = {"tokenloom.choice.index": choice.index}
        if phase == "decode":
            attributes["gen_ai.usage.output_tokens"] = choice.num_output_tokens
            if choice.finish_reason is not None:
                attributes["gen_ai.response.finish_reasons"] = [choice.finish_reason]
        start_ns = self._ns(start_s)
        self.tracer.start_span(phase, context, attributes=attributes, start_time=start_ns).end(self._ns(end_s))

    def _ns(self, time_s: float) -> int:
        return round(time_s * _NS_PER_S) + self.offset_ns


def _request_attributes(trace: RequestTrace) -> _Attributes:
    attributes: _Attributes = {
        "gen_ai.operation.name": trace.operation,
        "gen_ai.provider.name": "tokenloom",
        "gen_ai.request.model": trace.model,
        "gen_ai.response.model": trace.model,
        "gen_ai.response.id": trace.request_id,
        "tokenloom.http_request_id": trace.http_request_id,
        "gen_ai.usage.input_tokens": trace.num_prompt_tokens,
        "gen_ai.usage.output_tokens": sum(choice.num_output_tokens for choice in trace.choices),
        "tokenloom.usage.cached_tokens": trace.num_cached_tokens,
        "http.request.method": "POST",
        "http.route": trace.route,
        "http.response.status_code": trace.status,
    }
    reasons = [choice.finish_reason for choice in trace.choices if choice.finish_reason is not None]
    if reasons:
        attributes["gen_ai.response.finish_reasons"] = reasons
    if trace.error is not None:
        attributes["error.type"] = str(trace.status)
    if trace.params is not None:
        attributes |= _sampling_attributes(trace.params)
    return attributes


def _sampling_attributes(params: SamplingParams) -> _Attributes:
    defaults = SamplingParams()
    attributes: _Attributes = {"gen_ai.request.choice.count": params.n} if params.n > 1 else {}
    for name, field in _SAMPLING.items():
        value = getattr(params, field)
        if value is not None and value != getattr(defaults, field):
            attributes[f"gen_ai.request.{name}"] = list(value) if field == "stop" else value
    return attributes
