"""From records of requests to the figures of a result. Pure functions over recorded times."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenloom.bench.latency import percentiles
from tokenloom.errors import ConfigError
from tokenloom.load_generator.load_request import Outcome, RequestRecord
from tokenloom.simulation.measurements import SloTargets

__all__ = ["Window", "is_in_time", "measured_window", "summarize"]


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a run that counts, seconds from the start of the load."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Seconds."""
        return self.end_s - self.start_s

    def holds(self, time_s: float) -> bool:
        """Whether a moment counts."""
        return self.start_s <= time_s <= self.end_s


def measured_window(end_s: float, warmup_s: float) -> Window:
    """The window that counts: from the end of the warm-up.

    Raises:
        ConfigError: nothing is left.
    """
    if end_s <= warmup_s:
        raise ConfigError(
            f"nothing is left to measure: the load was over, or began to fall, {end_s:.2f} s after its start, and "
            f"warmup_s={warmup_s:g}; give more requests (limit= or duration_s=), a smaller warmup_s, or cut_off=false"
        )
    return Window(warmup_s, end_s)


def is_in_time(record: RequestRecord, targets: SloTargets) -> bool:
    """Whether a request completed within both targets; one with a single token has no TPOT to miss."""
    if not record.is_completed or record.ttft_s is None:
        return False
    factor = record.slo_factor
    return record.ttft_s <= factor * targets.ttft_s and (record.tpot_s or 0.0) <= factor * targets.tpot_s


def summarize(records: Sequence[RequestRecord], window: Window, targets: SloTargets) -> dict[str, Any]:
    """The figures of a run.

    Requests count, with their whole life, if they were due within the window. Throughput and goodput count what
    happened within it: tokens that came, requests that completed.
    """
    due = [record for record in records if window.holds(record.scheduled_s)]
    completed = [record for record in due if record.is_completed]
    outcomes = Counter(record.outcome for record in due)
    num_ended_due = len(due) - outcomes[Outcome.UNFINISHED]
    num_met = sum(is_in_time(record, targets) for record in due)
    output_tokens = sum(_tokens_within(record, window) for record in records)
    ended = [record for record in records if record.is_completed and window.holds(record.end_s)]
    prompt_tokens = sum(r.num_prompt_tokens or 0 for r in records if r.ttft_s is not None and window.holds(_first(r)))
    return {
        "window": {"start_s": window.start_s, "end_s": window.end_s, "length_s": window.length_s},
        "duration_s": window.length_s,
        "num_requests": len(due),
        "num_outside_window": len(records) - len(due),
        "num_completed": len(completed),
        "num_refused": outcomes[Outcome.REFUSED],
        "num_failed": outcomes[Outcome.FAILED],
        "num_unfinished": outcomes[Outcome.UNFINISHED],
        "failures": _kinds(due, Outcome.FAILED),
        "refusals": _kinds(due, Outcome.REFUSED),
        "offered_rps": len(due) / window.length_s,
        "completed_rps": len(ended) / window.length_s,
        "output_tok_s": output_tokens / window.length_s,
        "total_tok_s": (output_tokens + prompt_tokens) / window.length_s,
        "latency": _latencies(completed),
        "slo": {
            "ttft_s": targets.ttft_s,
            "tpot_s": targets.tpot_s,
            "num_met": num_met,
            "share_met": num_met / num_ended_due if num_ended_due else 0.0,
            "goodput_rps": sum(is_in_time(record, targets) for record in ended) / window.length_s,
        },
        "send_late_s": percentiles([max(0.0, record.sent_s - record.scheduled_s) for record in due]),
        "refused_after_s": percentiles([r.end_s - r.sent_s for r in due if r.outcome is Outcome.REFUSED]),
        "tokens": _token_counts(completed),
    }


def _latencies(completed: Sequence[RequestRecord]) -> dict[str, dict[str, float | int | None]]:
    gaps: array[float] = array("d")
    chunks: array[int] = array("I")
    for record in completed:
        gaps.extend(np.diff(record.chunk_times_s).tolist())
        chunks.extend(record.chunk_tokens)
    return {
        "ttft_s": percentiles([r.ttft_s for r in completed if r.ttft_s is not None]),
        "tpot_s": percentiles([tpot_s for r in completed if (tpot_s := r.tpot_s) is not None]),
        "itl_s": percentiles(gaps),
        "e2e_s": percentiles([r.e2e_s for r in completed]),
        "tokens_per_chunk": percentiles(chunks),
    }


def _token_counts(completed: Sequence[RequestRecord]) -> dict[str, Any]:
    """Tokens of completed requests, and how they were counted."""
    num_with_usage = sum(record.has_usage for record in completed)
    if num_with_usage == len(completed):
        source = "usage"
    else:
        source = "usage and chunks" if num_with_usage else "chunks"
    num_output = sum(record.num_output_tokens for record in completed)
    num_chunks = sum(len(record.chunk_times_s) for record in completed)
    prompts = [record.num_prompt_tokens for record in completed if record.num_prompt_tokens is not None]
    cached = [record.num_cached_tokens for record in completed if record.num_cached_tokens is not None]
    return {
        "counted_by": source if completed else None,
        "num_output_tokens": num_output,
        "num_asked_tokens": sum(record.max_tokens for record in completed),
        "num_chunks": num_chunks,
        "mean_tokens_per_chunk": num_output / num_chunks if num_chunks else None,
        "num_prompt_tokens": sum(prompts) if prompts else None,
        "num_cached_tokens": sum(cached) if cached else None,
    }


def _kinds(due: Sequence[RequestRecord], outcome: Outcome) -> dict[str, dict[str, Any]]:
    """Failures or refusals by kind: how many, and the first one's message."""
    kinds: dict[str, dict[str, Any]] = {}
    for record in due:
        if record.outcome is outcome:
            kinds.setdefault(record.failure, {"count": 0, "first": record.message})["count"] += 1
    return kinds


def _first(record: RequestRecord) -> float:
    return record.chunk_times_s[0]


def _tokens_within(record: RequestRecord, window: Window) -> float:
    """Output tokens that came within the window, in proportion where chunks and usage disagree."""
    num_counted = sum(record.chunk_tokens)
    if not num_counted:
        return 0.0
    within = sum(n for time_s, n in zip(record.chunk_times_s, record.chunk_tokens, strict=True) if window.holds(time_s))
    return within * record.num_output_tokens / num_counted
