"""The figures of one simulated run, as plain data for tables and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tokenloom.engine import Engine
from tokenloom.simulation.measurements import LatencyRecorder, Occupancy, SloTargets
from tokenloom.simulation.timed_request import TimedRequest, mean_rate

__all__ = ["meets_targets", "summarize"]


def summarize(
    engine: Engine,
    requests: Sequence[TimedRequest],
    latencies: LatencyRecorder,
    occupancy: Occupancy,
    targets: SloTargets,
    rejections: Sequence[str],
    wall_s: float,
) -> dict[str, Any]:
    """Sums a run up.

    Args:
        engine: after its last step.
        requests: the workload.
        latencies, occupancy: what was measured.
        targets: of the goodput.
        rejections: why requests were refused.
        wall_s: real seconds that the simulation took.
    """
    stats = engine.stats
    duration_s = max(0.0, latencies.last_finish_s - requests[0].arrival_s)
    return {
        "duration_s": duration_s,
        "num_requests": len(requests),
        "num_completed": latencies.num_completed,
        "num_failed": latencies.num_failed,
        "num_rejected": len(rejections),
        "first_rejection": rejections[0] if rejections else None,
        "offered_rps": mean_rate(requests),
        "completed_rps": _ratio(latencies.num_completed, duration_s),
        "output_tok_s": _ratio(stats.num_output_tokens, duration_s),
        "total_tok_s": _ratio(stats.num_prompt_tokens + stats.num_output_tokens, duration_s),
        "latency": latencies.summary(),
        "slo": {
            "ttft_s": targets.ttft_s,
            "tpot_s": targets.tpot_s,
            "num_met": latencies.num_in_time,
            "share_met": _ratio(latencies.num_in_time, len(requests)),
            "goodput_rps": _ratio(latencies.num_in_time, duration_s),
        },
        "hit_ratio": _ratio(stats.num_cached_tokens, stats.num_prompt_tokens),
        "num_preemptions": stats.num_preemptions,
        "num_computed_tokens": stats.num_computed_tokens,
        "num_recomputed_tokens": stats.num_recomputed_tokens,
        "recomputed_share": _ratio(stats.num_recomputed_tokens, stats.num_computed_tokens),
        "num_steps": stats.num_steps,
        "occupancy": occupancy.summary(),
        "engine": asdict(stats),
        "resolved": {"device": engine.facts.device, "dtype": engine.facts.dtype},
        "num_blocks": list(engine.facts.num_blocks),
        "memory_bytes": dict(engine.facts.memory),
        "simulation": {"wall_s": wall_s, "steps_per_s": _ratio(stats.num_steps, wall_s)},
    }


def meets_targets(result: Mapping[str, Any]) -> bool:
    """Whether all requests completed and p99 of TTFT and TPOT are within the targets."""
    slo, latency = result["slo"], result["latency"]
    p99 = {name: latency[name]["p99"] for name in ("ttft_s", "tpot_s")}
    is_complete = bool(result["num_completed"] == result["num_requests"])
    return is_complete and all(value is None or value <= slo[name] for name, value in p99.items())


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
