"""What requests live through, as metrics: latencies, tokens, how they ended, whether they met their targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from tokenloom.engine_output import EngineOutput
from tokenloom.observability.metric_store import MetricStore
from tokenloom.request import FinishReason, Request

__all__ = ["RequestObserver"]

_MAX_TENANTS = 100
"""Tenants with labels of their own; the others share one, so that a flood of names cannot flood Prometheus."""
_OTHER_TENANTS = "other"
_NO_TENANT = "none"


@dataclass(slots=True)
class _Live:
    """A request that has not ended. `last_token_s`: when its last tokens landed; None before the first ones."""

    request: Request
    last_token_s: float | None = None


@dataclass(slots=True)
class _Prompt:
    """The choices of one prompt: how many have not ended, and the longest output of the others."""

    num_open: int
    longest: int = 0


@final
class RequestObserver:
    """Follows the requests of one engine from arrival to end. Costs one histogram entry for a chunk of tokens."""

    def __init__(self, store: MetricStore, *, has_tenant_label: bool) -> None:
        self._store = store
        self._has_tenant_label = has_tenant_label
        self._live: dict[str, _Live] = {}
        self._prompts: dict[str, _Prompt] = {}
        self._tenants: set[str] = set()
        self._gap_s = store.histogram("inter_token_latency_seconds")

    def __len__(self) -> int:
        """Requests that have not ended."""
        return len(self._live)

    def arrive(self, choices: Sequence[Request]) -> None:
        """Takes the choices of one prompt, all of which the engine has accepted."""
        first = choices[0]
        self._observe("request_params_n", len(choices))
        if first.params.max_tokens is not None:
            self._observe("request_params_max_tokens", first.params.max_tokens)
        if len(choices) > 1:
            self._prompts[first.choice_set] = _Prompt(len(choices))
        for request in choices:
            self._live[request.request_id] = _Live(request)

    def take(self, outputs: Iterable[EngineOutput]) -> None:
        """Takes the news of requests that arrived."""
        observe_gap, num_tokens = self._gap_s.observe, 0
        for output in outputs:
            live = self._live[output.request_id]
            if output.token_ids:
                num_tokens += len(output.token_ids)
                if live.last_token_s is None:
                    self._begin(live.request, output)
                else:
                    observe_gap(output.landed_s - live.last_token_s)
                live.last_token_s = output.landed_s
            if output.finish_reason is not None:
                self._end(live, output, output.finish_reason)
        self._store.add("generation_tokens", num_tokens)

    def _begin(self, request: Request, output: EngineOutput) -> None:
        self._store.add("prompt_tokens", request.num_prompt_tokens)
        self._look_up(request, output)
        self._observe("time_to_first_token_seconds", output.landed_s - output.times.arrival_s)

    def _look_up(self, request: Request, output: EngineOutput) -> None:
        """Queries and hits are counted together, so that their ratio is right at any time."""
        self._store.add("prefix_cache_queries", request.num_prompt_tokens)
        self._store.add("prefix_cache_hits", output.num_cached_tokens)

    def _end(self, live: _Live, output: EngineOutput, reason: FinishReason) -> None:
        request, store = live.request, self._store
        del self._live[request.request_id]
        if live.last_token_s is None and output.times.first_scheduled_s is not None:
            self._look_up(request, output)
        store.add("request_success", 1, reason.value)
        self._observe("request_prompt_tokens", request.num_prompt_tokens)
        self._observe("request_generation_tokens", request.num_output_tokens)
        self._observe_longest(request)
        if reason in (FinishReason.STOP, FinishReason.LENGTH) and live.last_token_s is not None:
            self._observe_times(request, output, live.last_token_s)
        self._judge(request, output, reason)
        if self._has_tenant_label:
            tenant = self._tenant_label(request.tenant)
            store.add("tenant_requests", 1, tenant, reason.value)
            store.add("tenant_tokens", request.num_prompt_tokens, tenant, "prompt")
            store.add("tenant_tokens", request.num_output_tokens, tenant, "generation")

    def _observe_times(self, request: Request, output: EngineOutput, last_token_s: float) -> None:
        times = output.times
        first_step_s, first_token_s, end_s = times.first_scheduled_s, times.first_token_s, times.finish_s
        assert first_step_s is not None, f"{request.request_id} ended without a step"
        assert first_token_s is not None, f"{request.request_id} ended without a token"
        assert end_s is not None, f"{request.request_id} ended at no time"
        self._observe("e2e_request_latency_seconds", end_s - times.arrival_s)
        self._observe("request_queue_time_seconds", first_step_s - times.arrival_s)
        self._observe("request_prefill_time_seconds", first_token_s - first_step_s)
        self._observe("request_decode_time_seconds", last_token_s - first_token_s)
        self._observe("request_inference_time_seconds", last_token_s - first_step_s)
        tpot_s = times.tpot_s(request.num_output_tokens)
        if tpot_s is not None:
            self._observe("request_time_per_output_token_seconds", tpot_s)

    def _observe_longest(self, request: Request) -> None:
        prompt = self._prompts.get(request.choice_set) or _Prompt(1)
        prompt.num_open -= 1
        prompt.longest = max(prompt.longest, request.num_output_tokens)
        if not prompt.num_open:
            self._prompts.pop(request.choice_set, None)
            self._observe("request_max_num_generation_tokens", prompt.longest)

    def _judge(self, request: Request, output: EngineOutput, reason: FinishReason) -> None:
        """Counts a request against its targets. One that was aborted counts only if it was late by then."""
        verdicts = _verdicts(request, output)
        if not verdicts:
            return
        if reason is FinishReason.ERROR:
            verdicts = dict.fromkeys(verdicts, False)
        verdicts["all"] = all(verdicts.values())
        for slo, is_met in verdicts.items():
            if reason is not FinishReason.ABORT or not is_met:
                self._store.add("slo_requests", 1, slo)
                self._store.add("slo_requests_met", is_met, slo)

    def _tenant_label(self, tenant: str) -> str:
        if not tenant:
            return _NO_TENANT
        if len(self._tenants) < _MAX_TENANTS:
            self._tenants.add(tenant)
        return tenant if tenant in self._tenants else _OTHER_TENANTS

    def _observe(self, name: str, value: float) -> None:
        self._store.histogram(name).observe(value)


def _verdicts(request: Request, output: EngineOutput) -> dict[str, bool]:
    """Whether a request that ended was in time for each target that it has. A single token has no TPOT to miss."""
    verdicts: dict[str, bool] = {}
    times = output.times
    if request.ttft_slo_s is not None:
        first_s = times.first_token_s if times.first_token_s is not None else times.finish_s
        assert first_s is not None, f"{request.request_id} ended at no time"
        verdicts["ttft"] = first_s - times.arrival_s <= request.ttft_slo_s
    if request.tpot_slo_s is not None:
        tpot_s = times.tpot_s(request.num_output_tokens)
        verdicts["tpot"] = tpot_s is None or tpot_s <= request.tpot_slo_s
    return verdicts
