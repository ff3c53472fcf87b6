"""Metrics of an engine on a virtual clock, against values worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.core.observability.samples import sample, samples_of
from tokenloom.batch import PreemptMode
from tokenloom.compose import compose_config
from tokenloom.engine_config import EngineConfig
from tokenloom.engine_output import EngineOutput
from tokenloom.engine_process.fault import Fault
from tokenloom.engine_process.messages import Refused
from tokenloom.errors import PluginContractError
from tokenloom.observability.engine_metrics import EngineMetrics
from tokenloom.observability.exposition import MetricLabels, render_metrics
from tokenloom.request import FinishReason, Request
from tokenloom.testing.engine_harness import ChosenDrafts, EngineHarness, PreemptAt, build_fcfs, oracle_drafts


@cache
def default_config() -> EngineConfig:
    return compose_config().engine


class Watched:
    """An engine whose steps take the seconds that a test says, and its metrics."""

    def __init__(self, *, has_tenant_label: bool = False, **engine: Any) -> None:
        self.harness = EngineHarness(**engine)
        self.metrics = EngineMetrics(self.harness.engine, default_config(), has_tenant_label=has_tenant_label)

    def request(self, name: str, num_prompt: int = 4, max_tokens: int = 4, **changes: Any) -> Request:
        request = self.harness.request(name, range(1, num_prompt + 1), max_tokens, stop=changes.pop("stop", ()))
        for field, value in changes.items():
            setattr(request, field, value)
        return request

    def add(self, *requests: Request) -> None:
        self.harness.add(*requests)
        self.metrics.accepted(requests)

    def step(self, duration_s: float = 1.0) -> list[EngineOutput]:
        self.harness.clock.advance(duration_s)
        outputs = self.harness.engine.step()
        self.metrics.stepped(outputs)
        return outputs

    def end(self, output: EngineOutput | None) -> None:
        assert output is not None
        self.metrics.ended(output)

    def run(self, durations_s: Sequence[float]) -> None:
        for duration_s in durations_s:
            self.step(duration_s)
        assert not self.harness.engine.has_work()

    def value(self, name: str, **labels: str) -> float:
        return sample(self.text(), name, **labels)

    def text(self) -> str:
        return render_metrics(self.metrics.snapshot(), MetricLabels("tiny"))

    def sums(self, *names: str) -> list[tuple[float, float]]:
        """(count, sum) of histograms."""
        text = self.text()
        return [(sample(text, f"{name}_count"), sample(text, f"{name}_sum")) for name in names]


def test_latencies_are_what_the_clock_says() -> None:
    watched = Watched()
    watched.add(watched.request("r"))
    # In the queue for 2 s; tokens at 2, 2.25, 3.25 and 3.5 s.
    watched.run([2.0, 0.25, 1.0, 0.25])
    assert watched.sums(
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "request_time_per_output_token_seconds",
    ) == [(1, 2.0), (3, 1.5), (1, 3.5), (1, 2.0), (1, 0.0), (1, 1.5), (1, 1.5), (1, 0.5)]
    text = watched.text()
    assert sample(text, "inter_token_latency_seconds_bucket", le="0.2") == 0
    assert sample(text, "inter_token_latency_seconds_bucket", le="0.3") == 2
    assert sample(text, "inter_token_latency_seconds_bucket", le="1.0") == 3


def test_prefill_in_chunks_ends_at_the_first_token() -> None:
    watched = Watched(budget=2)
    watched.add(watched.request("r", num_prompt=6, max_tokens=1))
    watched.run([1.0, 2.0, 4.0])
    assert watched.sums("request_queue_time_seconds", "request_prefill_time_seconds") == [(1, 1.0), (1, 6.0)]
    assert watched.sums("request_time_per_output_token_seconds", "inter_token_latency_seconds") == [(0, 0), (0, 0)]
    assert watched.sums("iteration_tokens_total") == [(3, 6)]


def test_tokens_prefix_hits_and_parameters_are_counted() -> None:
    watched = Watched(block_size=4)
    watched.add(watched.request("first", num_prompt=9, max_tokens=2))
    watched.run([1.0, 1.0])
    watched.add(watched.request("second", num_prompt=9, max_tokens=3))
    watched.run([1.0, 1.0, 1.0])
    text = watched.text()
    assert [sample(text, name) for name in ("prompt_tokens_total", "generation_tokens_total")] == [18, 5]
    assert [sample(text, f"prefix_cache_{name}_total") for name in ("queries", "hits")] == [18, 8]
    assert watched.sums("request_prompt_tokens", "request_generation_tokens") == [(2, 18), (2, 5)]
    assert watched.sums("request_params_max_tokens", "request_params_n") == [(2, 5), (2, 2)]
    assert sample(text, "request_success_total", finished_reason="length") == 2


def test_choices_of_a_prompt_count_once_by_their_longest() -> None:
    watched = Watched()
    choices = [watched.request(f"r-{i}", choice_index=i, choice_set="r", max_tokens=i + 1) for i in range(3)]
    watched.add(*choices)
    watched.run([1.0] * 3)
    assert watched.sums("request_params_n", "request_params_max_tokens") == [(1, 3), (1, 1)]
    assert watched.sums("request_max_num_generation_tokens", "request_generation_tokens") == [(1, 3), (3, 6)]


def test_gauges_show_what_is() -> None:
    watched = Watched(num_blocks=(11,), block_size=4, max_num_seqs=1)
    watched.add(watched.request("a", num_prompt=8, max_tokens=5), watched.request("b"))
    watched.step()
    text = watched.text()
    assert [sample(text, f"num_requests_{name}") for name in ("running", "waiting")] == [1, 1]
    active = watched.harness.engine.kv_usage()["active"]
    assert active == 2
    assert sample(text, "kv_cache_usage_perc") == 0.2
    assert [sample(text, "kv_blocks", state=state) for state in ("active", "free", "cached", "in_transfer")] == [
        2,
        8,
        0,
        0,
    ]
    assert sample(text, "cache_config_info", block_size="16", num_gpu_blocks="11") == 1
    (info,) = [dict(labels) for name, labels in samples_of(text) if name == "tokenloom:engine_info"]
    assert (info["scheduler"], info["spec_decode"], info["device"]) == ("fcfs", "none", "cpu")


def test_ends_are_counted_by_reason_and_failures_have_no_latency() -> None:
    watched = Watched()
    watched.harness.executor.faults.row_errors["broken"] = 1
    names = ("long", "broken", "gone", "cut")
    watched.add(*(watched.request(name, max_tokens=3) for name in names), watched.request("unseen"))
    watched.step()
    watched.end(watched.harness.engine.abort("gone"))
    watched.step()
    watched.end(watched.harness.engine.truncate("cut", 1, "stop string"))
    watched.end(watched.harness.engine.abort("unseen"))
    watched.run([1.0])
    text = watched.text()
    ends = {reason: sample(text, "request_success_total", finished_reason=reason) for reason in FinishReason}
    assert ends == {"stop": 1, "length": 1, "abort": 2, "error": 1}
    # A token that a stop string cut off was generated all the same.
    assert sample(text, "generation_tokens_total") == 3 + 1 + 1 + 2 + 2
    assert watched.sums("request_generation_tokens") == [(5, 3 + 1 + 1 + 1 + 2)]
    assert watched.sums("e2e_request_latency_seconds") == [(2, 5.0)]


def test_request_aborted_in_the_queue_is_only_counted() -> None:
    watched = Watched(max_num_seqs=1)
    watched.add(watched.request("runs", max_tokens=2), watched.request("waits"))
    watched.step()
    watched.end(watched.harness.engine.abort("waits"))
    watched.run([1.0])
    assert watched.value("request_success_total", finished_reason="abort") == 1
    assert watched.value("prefix_cache_queries_total") == 4
    assert watched.sums("time_to_first_token_seconds") == [(1, 1.0)]


@pytest.mark.parametrize(
    ("ttft_slo_s", "tpot_slo_s", "expected"),
    [
        (None, None, {}),
        (2.0, None, {"ttft": True, "all": True}),
        (1.9, None, {"ttft": False, "all": False}),
        (None, 0.5, {"tpot": True, "all": True}),
        (2.0, 0.4, {"ttft": True, "tpot": False, "all": False}),
    ],
)
def test_targets_are_judged_by_the_times(
    ttft_slo_s: float | None, tpot_slo_s: float | None, expected: dict[str, bool]
) -> None:
    watched = Watched()
    watched.add(watched.request("r", ttft_slo_s=ttft_slo_s, tpot_slo_s=tpot_slo_s))
    watched.run([2.0, 0.25, 1.0, 0.25])
    assert slo_counts(watched) == {slo: (1, int(is_met)) for slo, is_met in expected.items()}


def test_aborted_request_counts_against_a_target_only_if_it_was_late() -> None:
    watched = Watched()
    watched.add(watched.request("patient", ttft_slo_s=10.0), watched.request("late", ttft_slo_s=0.5, tpot_slo_s=9.0))
    watched.step()
    for name in ("patient", "late"):
        watched.end(watched.harness.engine.abort(name))
    assert slo_counts(watched) == {"ttft": (1, 0), "all": (1, 0)}


def test_failed_request_met_no_target() -> None:
    watched = Watched()
    watched.harness.executor.faults.row_errors["r"] = 1
    watched.add(watched.request("r", ttft_slo_s=10.0))
    watched.run([1.0, 1.0])
    assert slo_counts(watched) == {"ttft": (1, 0), "all": (1, 0)}


def slo_counts(watched: Watched) -> dict[str, tuple[float, float]]:
    text = watched.text()
    counts = {
        slo: (sample(text, "slo_requests_total", slo=slo), sample(text, "slo_requests_met_total", slo=slo))
        for slo in ("ttft", "tpot", "all")
    }
    return {slo: count for slo, count in counts.items() if count != (0, 0)}


def test_drafts_are_counted_by_position() -> None:
    watched = Watched(
        draft_policy=ChosenDrafts(lambda request, _: 3),
        drafts=lambda model: oracle_drafts(model, lambda _, num_tokens: 2),
    )
    watched.add(watched.request("r", max_tokens=7))
    while watched.harness.engine.has_work():
        watched.step()
    # One token, then twice two right drafts and the token behind them; there is no room for a third one at the end.
    text = watched.text()
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    assert [sample(text, f"spec_decode_{name}_total") for name in names] == [2, 5, 4]
    per_position = {
        dict(labels)["position"]: value for (name, labels), value in samples_of(text).items() if "per_pos" in name
    }
    assert per_position == {"0": 2, "1": 2}
    assert watched.sums("inter_token_latency_seconds") == [(2, 2.0)]


@pytest.mark.parametrize("mode", [PreemptMode.RECOMPUTE, PreemptMode.SWAP])
def test_preemptions_and_swaps_are_counted(mode: PreemptMode) -> None:
    watched = Watched(
        scheduler=lambda context: PreemptAt(build_fcfs(context), {"r": [2]}, mode),
        host_memory_bytes=1 << 20,
        cache="none",
    )
    watched.add(watched.request("r"), watched.request("other", max_tokens=9))
    while watched.harness.engine.has_work():
        watched.step()
    text, is_swap = watched.text(), mode is PreemptMode.SWAP
    assert sample(text, "num_preemptions_total") == 1
    assert sample(text, "swaps_total") == is_swap
    assert (sample(text, "swapped_bytes_total") > 0) == is_swap
    assert (sample(text, "recomputed_tokens_total") > 0) != is_swap
    assert sample(text, "request_success_total", finished_reason="length") == 2


def test_steps_are_timed_by_phase() -> None:
    watched = Watched()
    watched.add(watched.request("r", max_tokens=3))
    watched.run([1.0] * 3)
    watched.metrics.stepped([])
    # The stub says 1 ms of forward each; the virtual clock stands still during a step.
    assert watched.value("step_phase_time_seconds_count", phase="forward") == 3
    assert watched.value("step_phase_time_seconds_sum", phase="forward") == pytest.approx(0.003)
    assert watched.value("step_time_seconds_sum") == pytest.approx(0.003)
    assert watched.sums("iteration_tokens_total") == [(3, 6)]


def test_refusals_and_breaches_are_counted() -> None:
    watched = Watched()
    watched.metrics.refused(Refused("r", Fault("overloaded", "too much")))
    watched.metrics.refused(Refused("r", Fault("request", "too long")))
    watched.metrics.plan_failed(PluginContractError("scheduler=mine", "a rule", "broken"))
    text = watched.text()
    reasons = ("invalid", "overloaded", "internal", "unauthorized")
    assert [sample(text, "request_rejections_total", reason=reason) for reason in reasons] == [1, 1, 0, 0]
    assert sample(text, "plugin_contract_breaches_total", plugin="scheduler=mine") == 1


def test_tenants_are_named_only_when_asked_for_and_are_bounded() -> None:
    silent = Watched()
    silent.add(silent.request("r", max_tokens=1, tenant="secret"))
    silent.run([1.0])
    assert "secret" not in silent.text()
    watched = Watched(has_tenant_label=True)
    for number in range(103):
        watched.add(watched.request(f"r{number}", max_tokens=1, tenant=f"t{number}" if number else ""))
        watched.run([1.0])
    text = watched.text()
    assert sample(text, "tenant_tokens_total", tenant="none", kind="prompt") == 4
    assert sample(text, "tenant_requests_total", tenant="t100", finished_reason="length") == 1
    assert sample(text, "tenant_requests_total", tenant="other", finished_reason="length") == 2


def test_nothing_is_remembered_of_requests_that_ended() -> None:
    watched = Watched()
    choices = [watched.request(f"r-{i}", choice_index=i, choice_set="r") for i in range(2)]
    watched.add(*choices, watched.request("gone"))
    watched.step()
    watched.end(watched.harness.engine.abort("gone"))
    watched.run([1.0] * 3)
    assert len(watched.metrics._requests) == 0


def test_values_can_be_read_of_a_dead_engine() -> None:
    watched = Watched()
    watched.add(watched.request("r"))
    watched.step()
    watched.harness.engine.close()
    assert watched.value("num_requests_running") == 1


def test_failed_plan_ends_requests_with_an_error() -> None:
    watched = Watched()
    watched.add(watched.request("r"))
    output = watched.harness.engine.abort("r")
    assert output is not None
    watched.end(replace(output, finish_reason=FinishReason.ERROR, error="an illegal plan"))
    assert watched.value("request_success_total", finished_reason="error") == 1
