"""The figures of one simulated run, as plain data for tables and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tokenloom.engine import Engine
from tokenloom.simulation.measurements import LatencyRecorder, Occupancy, Rejections, SloTargets
from tokenloom.simulation.request_groups import STRICT
from tokenloom.simulation.timed_request import TimedRequest, mean_rate

__all__ = ["TARGETS", "missed_targets", "strict_latency", "summarize"]

TARGETS = {"ttft_s": "TTFT", "tpot_s": "TPOT"}
"""What there are targets for, by name in results."""


def summarize(
    engine: Engine,
    requests: Sequence[TimedRequest],
    latencies: LatencyRecorder,
    occupancy: Occupancy,
    targets: SloTargets,
    rejections: Rejections,
    wall_s: float,
) -> dict[str, Any]:
    """Sums a run up.

    Args:
        engine: after its last step.
        requests: the workload.
        latencies, occupancy: what was measured.
        targets: of the goodput.
        rejections: how many requests were refused, and why.
        wall_s: real seconds that the simulation took.
    """
    stats = engine.stats
    duration_s = max(0.0, latencies.last_finish_s - requests[0].arrival_s)
    return {
        "duration_s": duration_s,
        "num_requests": len(requests),
        "num_completed": latencies.num_completed,
        "num_failed": latencies.num_failed,
        "num_rejected": rejections.num_total,
        "num_overloaded": rejections.num_overloaded,
        "first_rejection": rejections.first,
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


def strict_latency(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """TTFT and TPOT of the requests that the targets of `slo` are for: all of them, unless some have longer ones."""
    found: Mapping[str, Any] = result["by_targets"][STRICT] if "by_targets" in result else result["latency"]
    return found


def missed_targets(result: Mapping[str, Any]) -> list[str]:
    """What a run missed, e.g. "TTFT 3.1 s": p99 beyond a target, of each sort of targets, or requests that did not end.

    Empty where all requests completed and p99 of TTFT and TPOT is within the targets.
    """
    num_lost = result["num_requests"] - result["num_completed"]
    missed = [f"{num_lost} of {result['num_requests']} requests not completed"] if num_lost else []
    sorts = result.get("by_targets") or {STRICT: {**result["latency"], "slo": result["slo"]}}
    for sort, figures in sorts.items():
        for name, label in TARGETS.items():
            p99 = figures[name]["p99"]
            if p99 is not None and p99 > figures["slo"][name]:
                missed.append(f"{'' if sort == STRICT else f'{sort} '}{label} {p99:.3g} s")
    return missed


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
