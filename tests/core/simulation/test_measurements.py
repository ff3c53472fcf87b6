"""Latencies and occupancy, worked out by hand."""

from __future__ import annotations

import pytest

from tokenloom.engine_output import EngineOutput, RequestTimes
from tokenloom.request import FinishReason
from tokenloom.simulation.measurements import LatencyRecorder, Occupancy, SloTargets


def output(name: str, count: int, landed_s: float, arrival_s: float, end: FinishReason | None = None) -> EngineOutput:
    return EngineOutput(name, [1] * count, (), end, None, 0, None, landed_s, RequestTimes(arrival_s))


def test_latencies_are_those_of_the_definitions() -> None:
    recorder = LatencyRecorder(SloTargets(ttft_s=2.0, tpot_s=0.5))
    recorder.take(output("a", 1, 3.0, 1.0))
    recorder.take(output("a", 2, 3.5, 1.0))
    recorder.take(output("a", 1, 4.5, 1.0, FinishReason.LENGTH))
    summary = recorder.summary()
    assert summary["ttft_s"]["p50"] == 2.0
    assert summary["e2e_s"]["p50"] == 3.5
    # 1.5 s for the three tokens after the first.
    assert summary["tpot_s"]["p50"] == 0.5
    assert (summary["itl_s"]["count"], summary["itl_s"]["mean"]) == (2, 0.75)
    assert summary["tokens_per_chunk"]["mean"] == pytest.approx(4 / 3)
    assert (recorder.num_completed, recorder.num_in_time, recorder.last_finish_s) == (1, 1, 4.5)


def test_targets_count_where_they_are_missed_and_failures_beside_them() -> None:
    recorder = LatencyRecorder(SloTargets(ttft_s=1.0, tpot_s=0.1))
    recorder.take(output("one token", 1, 1.0, 0.0, FinishReason.LENGTH))
    recorder.take(output("late", 1, 1.1, 0.0, FinishReason.LENGTH))
    recorder.take(output("slow", 1, 1.0, 0.0))
    recorder.take(output("slow", 1, 2.0, 0.0, FinishReason.STOP))
    recorder.take(output("failed", 0, 2.0, 0.0, FinishReason.ERROR))
    assert (recorder.num_completed, recorder.num_failed, recorder.num_in_time, recorder.num_ended) == (3, 1, 1, 4)
    assert recorder.summary()["ttft_s"]["count"] == 3
    assert recorder.summary()["tpot_s"]["count"] == 1


def test_occupancy_is_weighted_by_time() -> None:
    occupancy = Occupancy(num_usable_blocks=10)
    occupancy.take(1.0, {"active": 10}, num_running=4, num_waiting=0)
    occupancy.take(3.0, {"active": 2}, num_running=0, num_waiting=8)
    summary = occupancy.summary()
    assert (summary["kv_mean"], summary["kv_peak"]) == (pytest.approx(0.4), 1.0)
    assert (summary["running_mean"], summary["waiting_mean"], summary["waiting_peak"]) == (1.0, 6.0, 8.0)
    assert summary["busy_s"] == 4.0


def test_nothing_measured_is_no_number() -> None:
    assert LatencyRecorder(SloTargets(1.0, 1.0)).summary()["ttft_s"]["p99"] is None
    assert Occupancy(10).summary()["kv_mean"] == 0.0
