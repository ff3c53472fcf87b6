"""Every metric: its name, kind, labels, buckets and meaning. docs/observability.md shows the same table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tokenloom.request import FinishReason

__all__ = ["METRICS", "PREFIX", "VLLM_PREFIX", "Metric", "RefusalReason"]

PREFIX = "tokenloom:"
VLLM_PREFIX = "vllm:"

RefusalReason = Literal["invalid", "overloaded", "unavailable", "unauthorized", "too_large", "internal"]
"""Why a request was not taken in: it can never run as asked; too much to do; no engine; a wrong key; too long a body;
a fault of ours.
"""

_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_GAP_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_STEP_S = (*(float(f"{digit}e{power}") for power in range(-5, 1) for digit in (1, 2.5, 5)), 10.0)
_TOKENS = (*(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5)), 1e6)
_STEP_TOKENS = (1.0, *(float(2**power) for power in range(3, 15)))
_CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, as Prometheus knows it.

    Attributes:
        name: without prefix; of a counter also without the `_total` that it gets on the wire.
        kind: how it is to be read.
        meaning: its help text.
        labels: its own, beside `model_name` and, unless it is `of_http`, `engine`.
        initial: values of `labels` that are there from the start, at 0.
        buckets: upper bounds of a histogram's buckets, +Inf left out.
        is_in_vllm: whether vLLM has a metric of this name and meaning, so that it can appear under that name, too.
        of_http: whether it tells of HTTP requests and not of an engine.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: tuple[str, ...] = ()
    initial: tuple[tuple[str, ...], ...] = ((),)
    buckets: tuple[float, ...] = ()
    is_in_vllm: bool = False
    of_http: bool = False


def _each(*values: str) -> tuple[tuple[str, ...], ...]:
    return tuple((value,) for value in values)


def _vllm_times(name: str, meaning: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(name, "histogram", meaning, buckets=buckets, is_in_vllm=True)


_ENGINE = (
    Metric("engine_up", "gauge", "1 while the engine takes requests, else 0."),
    Metric("engine_restarts", "counter", "Times that the engine was started again after it had died."),
    Metric(
        "engine_info",
        "gauge",
        "1; the labels name the plugins, device and dtype.",
        ("attention", "scheduler", "cache", "spec_decode", "quant", "executor", "device", "dtype", "version"),
        initial=(),
    ),
    Metric(
        "cache_config_info",
        "gauge",
        "1; the labels give tokens per KV block, and blocks over all pools.",
        ("block_size", "num_gpu_blocks"),
        initial=(),
        is_in_vllm=True,
    ),
    Metric("num_requests_running", "gauge", "Requests that hold a slot.", is_in_vllm=True),
    Metric("num_requests_waiting", "gauge", "Requests that hold no slot, preempted ones included.", is_in_vllm=True),
    Metric("kv_cache_usage_perc", "gauge", "Share of the KV blocks that requests hold, 0 to 1.", is_in_vllm=True),
    Metric("kv_blocks", "gauge", "KV blocks by state: free, active, cached or in_transfer.", ("state",), initial=()),
)
_TOKENS_AND_CACHE = (
    Metric("prompt_tokens", "counter", "Prompt tokens of requests that began to answer.", is_in_vllm=True),
    Metric("generation_tokens", "counter", "Output tokens, those behind a stop string included.", is_in_vllm=True),
    Metric("prefix_cache_queries", "counter", "Prompt tokens of requests that were started.", is_in_vllm=True),
    Metric("prefix_cache_hits", "counter", "Of these, tokens that the prefix cache held.", is_in_vllm=True),
    Metric("num_preemptions", "counter", "Times that a running request lost its memory.", is_in_vllm=True),
    Metric("recomputed_tokens", "counter", "Tokens computed once more after a preemption."),
    Metric("swaps", "counter", "Preemptions that moved KV to host memory."),
    Metric("swaps_refused", "counter", "Swaps that found no room there and became recomputes."),
    Metric("swaps_lost", "counter", "Swaps whose KV did not arrive."),
    Metric("swapped_bytes", "counter", "KV moved to host memory, bytes."),
    Metric("spec_decode_num_drafts", "counter", "Proposals of a drafter that were verified.", is_in_vllm=True),
    Metric("spec_decode_num_draft_tokens", "counter", "Tokens of these proposals.", is_in_vllm=True),
    Metric("spec_decode_num_accepted_tokens", "counter", "Of these, accepted ones.", is_in_vllm=True),
    Metric(
        "spec_decode_num_accepted_tokens_per_pos",
        "counter",
        "Accepted tokens by their place in the proposal, counted from 0.",
        ("position",),
        initial=(),
        is_in_vllm=True,
    ),
)
_REQUESTS = (
    Metric(
        "request_success",
        "counter",
        "Requests that ended, by reason: stop, length, abort or error.",
        ("finished_reason",),
        initial=_each(*(reason.value for reason in FinishReason)),
        is_in_vllm=True,
    ),
    _vllm_times("time_to_first_token_seconds", "From arrival to the first token.", _TTFT_S),
    _vllm_times(
        "inter_token_latency_seconds", "From one chunk of tokens to the next, one entry a chunk.", _TOKEN_GAP_S
    ),
    _vllm_times(
        "request_time_per_output_token_seconds", "Per request, mean time of a token after the first.", _TOKEN_GAP_S
    ),
    _vllm_times("e2e_request_latency_seconds", "From arrival to the end.", _REQUEST_S),
    _vllm_times("request_queue_time_seconds", "From arrival to the first step.", _REQUEST_S),
    _vllm_times("request_prefill_time_seconds", "From the first step to the first token.", _REQUEST_S),
    _vllm_times("request_decode_time_seconds", "From the first token to the last.", _REQUEST_S),
    _vllm_times("request_inference_time_seconds", "From the first step to the last token.", _REQUEST_S),
    _vllm_times("request_prompt_tokens", "Per request, tokens of the prompt.", _TOKENS),
    _vllm_times("request_generation_tokens", "Per request, tokens of the output.", _TOKENS),
    _vllm_times("request_max_num_generation_tokens", "Per prompt, output tokens of its longest choice.", _TOKENS),
    _vllm_times("request_params_n", "Per prompt, choices asked for.", _CHOICES),
    _vllm_times("request_params_max_tokens", "Per prompt that limits its output, that limit.", _TOKENS),
    Metric(
        "request_rejections",
        "counter",
        "Requests that were not taken in, by reason.",
        ("reason",),
        initial=_each(*get_args(RefusalReason)),
    ),
    Metric(
        "slo_requests",
        "counter",
        "Requests with a target that ended, by target: ttft, tpot, or all of its own.",
        ("slo",),
        initial=_each("ttft", "tpot", "all"),
    ),
    Metric("slo_requests_met", "counter", "Of these, those that met it.", ("slo",), _each("ttft", "tpot", "all")),
    Metric(
        "tenant_requests",
        "counter",
        "Ends by tenant and reason; only with server.metrics_tenant_label=true.",
        ("tenant", "finished_reason"),
        initial=(),
    ),
    Metric(
        "tenant_tokens",
        "counter",
        "Tokens of ended requests by tenant and kind, prompt or generation; only with that key, too.",
        ("tenant", "kind"),
        initial=(),
    ),
)
_STEPS = (
    _vllm_times("iteration_tokens_total", "Tokens computed by a step.", _STEP_TOKENS),
    Metric("step_time_seconds", "histogram", "Duration of a step.", buckets=_STEP_S),
    Metric("step_phase_time_seconds", "histogram", "Duration of a phase of a step.", ("phase",), (), _STEP_S),
    Metric(
        "step_python_seconds", "counter", "Python's part of all steps: plan, build and commit, without op dispatch."
    ),
    Metric("plugin_contract_breaches", "counter", "Breaches of a contract, by plugin.", ("plugin",), initial=()),
)
_HTTP = (
    Metric(
        "http_requests", "counter", "HTTP responses by route and status.", ("route", "status"), initial=(), of_http=True
    ),
    Metric("http_requests_in_progress", "gauge", "HTTP requests being answered.", of_http=True),
    Metric(
        "http_request_duration_seconds",
        "histogram",
        "From the request's head to the last byte of its answer, by route.",
        ("route",),
        (),
        _TTFT_S,
        of_http=True,
    ),
    Metric(
        "front_end_time_seconds",
        "histogram",
        "Time that the front end adds: before_engine (read, tokenize), and after_engine (of streams, from the first "
        "token to the first byte of text).",
        ("stage",),
        _each("before_engine", "after_engine"),
        _STEP_S,
        of_http=True,
    ),
)

METRICS: dict[str, Metric] = {
    metric.name: metric for metric in (*_ENGINE, *_TOKENS_AND_CACHE, *_REQUESTS, *_STEPS, *_HTTP)
}
"""By name, in the order in which they are shown."""
