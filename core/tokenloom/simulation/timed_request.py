"""One request of a workload: when it arrives, how long it is, and what it shares with others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["MOST_TOKENS", "TimedRequest", "mean_rate", "scale_arrivals"]

MOST_TOKENS = 10_000_000
"""Longest prompt or output of a workload: more than any context holds, and few enough to be made."""


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """A request before it has token ids; `prompts.PromptMaker` gives it some.

    Attributes:
        arrival_s: seconds from the start of the workload.
        num_prompt_tokens, num_output_tokens: its lengths.
        shared_ids: ids of its leading blocks of `shared_block_tokens` tokens; equal ids are equal tokens. The last one
            may be cut by the prompt's end. Empty: it shares nothing.
        shared_block_tokens: length of one such block.
        token_ids: the prompt itself, where a workload has it.
        tenant, priority: as in `Request`.
        slo_factor: its targets are those of the workload times this.
    """

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    shared_ids: tuple[int, ...] = ()
    shared_block_tokens: int = 512
    token_ids: tuple[int, ...] | None = None
    tenant: str = ""
    priority: int = 0
    slo_factor: float = 1.0


def mean_rate(requests: Sequence[TimedRequest]) -> float | None:
    """Requests per second between the first and the last arrival; None if they all arrive at once."""
    span_s = requests[-1].arrival_s - requests[0].arrival_s if requests else 0.0
    return (len(requests) - 1) / span_s if span_s > 0 else None


def scale_arrivals(requests: Sequence[TimedRequest], rate: float) -> list[TimedRequest]:
    """Stretches the time between arrivals so that `rate` requests come per second on average; bursts stay bursts."""
    own = mean_rate(requests)
    if own is None:
        return list(requests)
    first_s = requests[0].arrival_s
    return [replace(r, arrival_s=(r.arrival_s - first_s) * own / rate) for r in requests]
