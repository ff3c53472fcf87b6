"""Figures of tenants, priorities and sorts of targets, worked out by hand."""

from __future__ import annotations

import pytest

from tokenloom.engine_output import EngineOutput, RequestTimes
from tokenloom.request import FinishReason
from tokenloom.simulation.measurements import LatencyRecorder, SloTargets
from tokenloom.simulation.report import missed_targets, strict_latency
from tokenloom.simulation.request_groups import RequestGroups
from tokenloom.simulation.timed_request import TimedRequest

TARGETS = SloTargets(ttft_s=1.0, tpot_s=0.1)


def output(name: str, count: int, landed_s: float, end: FinishReason | None = None, cached: int = 0) -> EngineOutput:
    return EngineOutput(name, [1] * count, (), end, None, cached, None, landed_s, RequestTimes(0.0))


def run(requests: dict[str, TimedRequest], steps: list[list[EngineOutput]]) -> dict[str, object]:
    groups, recorder = RequestGroups(list(requests.values()), TARGETS), LatencyRecorder(TARGETS)
    for name, request in requests.items():
        groups.add(name, request)
        recorder.relax(name, request.slo_factor)
    for step in steps:
        for news in step:
            groups.take(news, recorder.take(news))
        groups.end_step()
    return groups.summary()


def test_requests_that_are_alike_have_no_groups() -> None:
    request = TimedRequest(0.0, 4, 1)
    assert run({"a": request, "b": request}, [[output("a", 1, 1.0, FinishReason.LENGTH)]]) == {}


def test_service_counts_computed_prompt_tokens_once_and_output_tokens_twice() -> None:
    requests = {"a": TimedRequest(0.0, 40, 3, tenant="x"), "b": TimedRequest(0.0, 10, 1, tenant="y")}
    steps = [
        [output("a", 1, 0.5, cached=16)],
        [output("a", 2, 0.6, FinishReason.LENGTH, cached=16), output("b", 1, 3.0, FinishReason.LENGTH)],
    ]
    found = run(requests, steps)
    tenants = found["by_tenant"]
    assert isinstance(tenants, dict)
    assert {name: figures["service"] for name, figures in tenants.items()} == {"x": 24 + 6, "y": 10 + 2}
    assert {name: figures["num_met"] for name, figures in tenants.items()} == {"x": 1, "y": 0}
    assert (tenants["x"]["ttft_s"]["p99"], tenants["x"]["tpot_s"]["mean"]) == (0.5, pytest.approx(0.05))
    assert (tenants["y"]["num_requests"], tenants["y"]["tpot_s"]["p99"]) == (1, None)
    assert list(found) == ["by_tenant", "fairness"]
    # After the first step only y waits, so nothing is compared; after the second nobody does.
    assert found["fairness"] == {"service_gap": 0.0, "worst_ttft_p99_s": 3.0}


def test_the_gap_is_that_of_tenants_that_wait() -> None:
    requests = {f"{t}{n}": TimedRequest(0.0, 10, 1, tenant=t) for t in "xy" for n in range(4)}
    ends = FinishReason.LENGTH
    steps = [
        [output("x0", 1, 0.1, ends)],
        [output("x1", 1, 0.2, ends), output("y0", 1, 0.2, ends)],
        [output("x2", 1, 0.3, ends)],
        # x waits no longer; what y gets behind is no concern of it.
        [output("x3", 1, 0.4, ends)],
        [output("y1", 1, 0.5, ends)],
    ]
    assert run(requests, steps)["fairness"] == {"service_gap": 24.0, "worst_ttft_p99_s": pytest.approx(0.497)}


def test_sorts_of_targets_are_measured_each_by_its_own() -> None:
    requests = {"a": TimedRequest(0.0, 4, 1), "b": TimedRequest(0.0, 4, 1, slo_factor=5.0)}
    ends = FinishReason.LENGTH
    found = run(requests, [[output("a", 1, 0.9, ends), output("b", 1, 4.0, ends)]])
    sorts = found["by_targets"]
    assert isinstance(sorts, dict)
    assert sorts["strict"]["slo"] == {"ttft_s": 1.0, "tpot_s": 0.1}
    assert sorts["relaxed"]["slo"] == {"ttft_s": 5.0, "tpot_s": 0.5}
    assert [figures["share_met"] for figures in sorts.values()] == [1.0, 1.0]
    result = {"num_completed": 2, "num_requests": 2, "latency": {}, "slo": sorts["strict"]["slo"], "by_targets": sorts}
    assert missed_targets(result) == []
    assert strict_latency(result)["ttft_s"]["p99"] == 0.9
    late = run(requests, [[output("a", 1, 0.9, ends), output("b", 1, 6.0, ends)]])
    assert missed_targets({**result, "by_targets": late["by_targets"]}) == ["relaxed TTFT 6 s"]


def test_a_rejected_or_failed_request_is_counted_and_waits_no_longer() -> None:
    requests = [TimedRequest(0.0, 10, 1, tenant=t, priority=p) for t in "xy" for p in (0, 1)]
    groups, recorder = RequestGroups(requests, TARGETS), LatencyRecorder(TARGETS)
    for index, request in enumerate(requests):
        groups.add(str(index), request)
    groups.reject("0")
    failed = output("1", 0, 1.0, FinishReason.ERROR)
    groups.take(failed, recorder.take(failed))
    served = output("2", 1, 1.0, FinishReason.LENGTH)
    groups.take(served, recorder.take(served))
    groups.end_step()
    found = groups.summary()
    assert [f["num_completed"] for f in found["by_tenant"].values()] == [0, 1]
    assert [f["num_requests"] for f in found["by_priority"].values()] == [2, 2]
    assert found["fairness"]["service_gap"] == 0.0


def test_tenants_are_listed_by_number() -> None:
    requests = [TimedRequest(0.0, 1, 1, tenant=f"tenant-{index}") for index in reversed(range(12))]
    found = RequestGroups(requests, TARGETS).summary()["by_tenant"]
    assert list(found) == [f"tenant-{index}" for index in range(12)]
