"""A timeline as a Chrome trace: JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tokenloom.observability.timeline import StepRecord

__all__ = ["chrome_trace"]

_PID, _STEP_TID = 1, 1
_US_PER_S = 1e6
_FACTS = (
    *("num_rows", "num_prompt_rows", "num_tokens", "num_draft_tokens", "num_accepted_tokens"),
    *("num_preempted", "num_running", "num_waiting"),
)


def chrome_trace(
    steps: Sequence[StepRecord], facts: Mapping[str, Any], ops: Iterable[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Steps as slices with their phases inside, and counters of KV blocks, requests and tokens.

    Args:
        steps: in order. Times in the trace are microseconds since the first one began.
        facts: kept beside the events, as `otherData`.
        ops: further events in the trace's own terms; see `OpProfile`. Their times are microseconds on the clock of the
            steps.
    """
    origin_s = steps[0].start_s if steps else 0.0
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": _PID, "name": "process_name", "args": {"name": "tokenloom"}},
        {"ph": "M", "pid": _PID, "tid": _STEP_TID, "name": "thread_name", "args": {"name": "engine steps"}},
    ]
    for step in steps:
        events += _step_events(step, origin_s)
    for op in ops:
        events.append({**op, "ts": op["ts"] - origin_s * _US_PER_S} if "ts" in op else dict(op))
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(facts)}


def _step_events(step: StepRecord, origin_s: float) -> list[dict[str, Any]]:
    def slice_of(name: str, start_s: float, end_s: float, args: Mapping[str, Any]) -> dict[str, Any]:
        times = {"ts": (start_s - origin_s) * _US_PER_S, "dur": (end_s - start_s) * _US_PER_S}
        return {"ph": "X", "pid": _PID, "tid": _STEP_TID, "cat": "step", "name": name, **times, "args": dict(args)}

    def counter(name: str, values: Mapping[str, int]) -> dict[str, Any]:
        ts = (step.end_s - origin_s) * _US_PER_S
        return {"ph": "C", "pid": _PID, "name": name, "ts": ts, "args": dict(values)}

    facts = {name: getattr(step, name) for name in _FACTS}
    blocks = {state: count for state, count in step.kv_blocks.items() if state != "null"}
    return [
        slice_of(f"step {step.step_id}", step.start_s, step.end_s, facts),
        *(slice_of(phase.name, phase.start_s, phase.end_s, {}) for phase in step.phases),
        counter("KV blocks", blocks),
        counter("requests", {"running": step.num_running, "waiting": step.num_waiting}),
        counter("tokens per step", {"tokens": step.num_tokens}),
    ]
