"""Whole replays: time, counts, sharing, rejection, and that equal runs are equal."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import pytest

from tokenloom.compose import compose_config
from tokenloom.executors.device_presets import load_preset
from tokenloom.simulation.load_generation import LoadShape, generate_load
from tokenloom.simulation.measurements import SloTargets
from tokenloom.simulation.replay import simulate
from tokenloom.simulation.report import missed_targets
from tokenloom.simulation.request_mix import RequestMix, mix_requests
from tokenloom.simulation.timed_request import TimedRequest

TARGETS = SloTargets(ttft_s=2.0, tpot_s=0.1)


def run(requests: list[TimedRequest], *overrides: str, targets: SloTargets = TARGETS) -> dict[str, Any]:
    config = compose_config(["executor=simulated", "cache.num_blocks=2000", *overrides])
    result = dict(simulate(config.engine, requests, targets).result)
    del result["simulation"]
    return result


def test_requests_far_apart_run_alone_and_idle_time_passes_at_once() -> None:
    result = run([TimedRequest(0.0, 100, 2), TimedRequest(1000.0, 100, 2)])
    costs, kv_bytes = load_preset("h100_8b").costs, 131_072
    first = costs.step_s + costs.prefill_token_s * 100 + (costs.kv_byte_s * 100 * kv_bytes)
    first += costs.attention_pair_s * (100 * 101 // 2)
    second = costs.step_s + costs.decode_row_s + costs.kv_byte_s * 101 * kv_bytes
    assert result["latency"]["ttft_s"]["p50"] == pytest.approx(first, rel=1e-9)
    assert result["latency"]["tpot_s"]["p50"] == pytest.approx(second, rel=1e-9)
    assert result["duration_s"] == pytest.approx(1000.0 + first + second, rel=1e-9)
    assert result["occupancy"]["busy_s"] == pytest.approx(2 * (first + second), rel=1e-6)
    assert result["num_steps"] == 4


def test_a_request_that_comes_during_a_step_waits_for_its_end() -> None:
    """The second one arrives 1 ms after the first; its TTFT counts from there."""
    result = run([TimedRequest(0.0, 2048, 1), TimedRequest(0.001, 16, 1)])
    ttfts = simulate(
        compose_config(["executor=simulated", "cache.num_blocks=2000"]).engine,
        [TimedRequest(0.0, 2048, 1), TimedRequest(0.001, 16, 1)],
        TARGETS,
    ).samples["ttft_s"]
    assert result["num_steps"] == 2
    assert ttfts[1] > ttfts[0] - 0.001


def test_every_token_is_counted() -> None:
    result = run(generate_load(LoadShape(rate=20.0, prompt_tokens=60, output_tokens=12, length_spread=0.4), 60, seed=1))
    engine = result["engine"]
    assert result["num_completed"] == 60 == engine["num_finished"]
    assert engine["num_output_tokens"] == result["latency"]["itl_s"]["count"] + 60
    assert result["num_recomputed_tokens"] == result["num_preemptions"] == 0
    # The last token of a request is never computed.
    assert result["num_computed_tokens"] == engine["num_prompt_tokens"] + engine["num_output_tokens"] - 60
    assert result["completed_rps"] == pytest.approx(60 / result["duration_s"])


def test_shared_prefixes_are_found_again() -> None:
    load = generate_load(LoadShape(rate=1.0, prompt_tokens=64, output_tokens=4, shared_prefix_tokens=64), 20, seed=1)
    shared, none = run(load), run(load, "cache=none")
    assert shared["hit_ratio"] == pytest.approx(19 * 64 / (20 * 128))
    assert none["hit_ratio"] == 0.0
    assert shared["latency"]["ttft_s"]["mean"] < none["latency"]["ttft_s"]["mean"]


def test_little_memory_preempts_and_says_what_it_cost() -> None:
    load = generate_load(LoadShape(prompt_tokens=40, output_tokens=60), 12, seed=1)
    result = run(load, "cache.num_blocks=40", "cache=none", "debug.checks=full")
    assert result["num_completed"] == 12
    assert result["num_preemptions"] > 0
    assert 0 < result["num_recomputed_tokens"] < result["num_computed_tokens"]
    assert result["recomputed_share"] == result["num_recomputed_tokens"] / result["num_computed_tokens"]
    assert 0.5 < result["occupancy"]["kv_mean"] <= result["occupancy"]["kv_peak"] <= 1.0


def test_what_can_never_run_is_rejected_alone_and_told() -> None:
    result = run(
        [TimedRequest(0.0, 700, 2), TimedRequest(0.0, 10, 2)], "cache.num_blocks=20", "model.max_model_len=500"
    )
    assert (result["num_completed"], result["num_rejected"], result["num_failed"]) == (1, 1, 0)
    assert "700 tokens" in result["first_rejection"]
    assert missed_targets(result) == ["1 of 2 requests not completed"]


def test_who_finds_the_queue_full_is_rejected_and_counted_apart() -> None:
    load = [TimedRequest(0.0, 700, 2), *[TimedRequest(0.0, 10, 2)] * 5]
    limits = (
        "cache.num_blocks=20",
        "model.max_model_len=500",
        "scheduler.max_num_seqs=1",
        "scheduler.max_queued_requests=2",
    )
    result = run(load, *limits)
    assert (result["num_completed"], result["num_rejected"], result["num_overloaded"]) == (3, 3, 2)
    assert "700 tokens" in result["first_rejection"]
    assert "scheduler.max_queued_requests=2" in run(load[1:], *limits)["first_rejection"]


def test_goodput_counts_requests_within_both_targets() -> None:
    load = generate_load(LoadShape(prompt_tokens=500, output_tokens=5), 30, seed=1)
    assert run(load, targets=SloTargets(1000.0, 1000.0))["slo"]["share_met"] == 1.0
    none = run(load, targets=SloTargets(1e-6, 1000.0))
    assert (none["slo"]["num_met"], none["slo"]["goodput_rps"]) == (0, 0.0)
    some = run(load, targets=SloTargets(0.2, 1000.0))
    assert 0 < some["slo"]["num_met"] < 30
    assert some["slo"]["goodput_rps"] == pytest.approx(some["slo"]["num_met"] / some["duration_s"])
    assert missed_targets(run(load, targets=SloTargets(1000.0, 1000.0))) == []
    assert missed_targets(some) == [f"TTFT {some['latency']['ttft_s']['p99']:.3g} s"]


@pytest.mark.parametrize("overrides", [(), ("spec_decode=ngram", "scheduler=sjf", "cache=radix")])
def test_equal_runs_are_equal(overrides: tuple[str, ...]) -> None:
    load = generate_load(LoadShape(rate=30.0, prompt_tokens=50, length_spread=1.0, output_tokens=20), 40, seed=1)
    small = ("cache.num_blocks=60", *overrides)
    assert run(load, *small) == run(load, *small)


@pytest.mark.parametrize(("count", "expected"), [(0, ["freeze", "unfreeze"]), (3, ["freeze", "unfreeze", "freeze"])])
def test_what_was_hidden_from_the_collector_is_so_afterwards(
    count: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loaded model beside the simulation, whose million objects would be walked again and again."""
    calls: list[str] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: count)
    for name in ("freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, lambda name=name: calls.append(name))
    run([TimedRequest(0.0, 10, 2)])
    assert calls == expected


def test_progress_ends_with_all_requests() -> None:
    told: list[int] = []
    config = compose_config(["executor=simulated", "cache.num_blocks=20", "model.max_model_len=200"])
    requests = [TimedRequest(0.0, 250, 1), TimedRequest(0.0, 10, 3), TimedRequest(1.0, 10, 3)]
    simulate(config.engine, requests, TARGETS, progress=told.append)
    assert told[-1] == 3
    assert told == sorted(told)


def test_tenants_priorities_and_targets_reach_the_scheduler_and_the_report() -> None:
    load = generate_load(LoadShape(rate=60.0, prompt_tokens=300, output_tokens=20), 150, seed=1)
    mixed = mix_requests(load, RequestMix(num_tenants=3, tenant_skew=2.0, num_priorities=2, relaxed_share=0.5), seed=1)
    small = ("executor.device=l4_8b", "scheduler.max_num_seqs=8")
    first, fair = run(mixed, *small), run(mixed, "scheduler=fair_share", *small)
    urgent = run(mixed, "scheduler=priority", *small)["by_priority"]
    assert {name: f["num_requests"] for name, f in fair["by_tenant"].items()} == Counter(r.tenant for r in mixed)
    assert fair["fairness"]["service_gap"] < 0.2 * first["fairness"]["service_gap"]
    assert fair["by_tenant"]["tenant-2"]["ttft_s"]["p99"] < 0.5 * first["by_tenant"]["tenant-2"]["ttft_s"]["p99"]
    assert urgent["0"]["ttft_s"]["p99"] < 0.7 * urgent["1"]["ttft_s"]["p99"]
    sorts = first["by_targets"]
    assert sorts["strict"]["num_met"] + sorts["relaxed"]["num_met"] == first["slo"]["num_met"]
    assert sorts["strict"]["share_met"] < sorts["relaxed"]["share_met"]
    plain = run(load, *small)
    assert plain["latency"] == first["latency"]
    assert "by_tenant" not in plain
