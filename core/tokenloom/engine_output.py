"""What the engine hands to its caller after a step, and the counters that it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tokenloom.batch import TokenLogprobs
from tokenloom.request import FinishReason
from tokenloom.unguarded import unguarded

__all__ = ["EngineOutput", "EngineStats", "RequestTimes"]


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """When things happened to a request, on the engine's clock, seconds; None where not yet."""

    arrival_s: float
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finish_s: float | None = None

    def tpot_s(self, num_output_tokens: int) -> float | None:
        """Mean time of an output token after the first; None where there is none, or the request has not ended."""
        if self.first_token_s is None or self.finish_s is None or num_output_tokens < 2:
            return None
        return (self.finish_s - self.first_token_s) / (num_output_tokens - 1)


@unguarded
@dataclass(frozen=True, slots=True)
class EngineOutput:
    """One request's news of one step.

    Attributes:
        request_id: whose.
        token_ids: new output tokens, a stop token included.
        logprobs: one per new token, if asked for.
        finish_reason: set in the last output of a request.
        stop_reason: the token id or string that stopped it.
        num_cached_tokens: prompt tokens found in the prefix cache at first admission.
        error: message, with finish_reason "error".
        landed_s: when these tokens landed.
        times: so far.
        prompt_logprobs: one for each token of the prompt, None for the first; only in the output with the first tokens
            of a request that wants them (of several choices, the first one).
    """

    request_id: str
    token_ids: list[int]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    num_cached_tokens: int
    error: str | None
    landed_s: float
    times: RequestTimes
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None


_TABLES = ("times_s", "accepted_by_position", "tried_by_position")
"""Fields of `EngineStats` that are no single number."""


@dataclass(slots=True)
class EngineStats:
    """Counters since the engine was built.

    `python_s` is the Python part of all steps: scheduling, building the plan and the batch, commit. Op dispatch,
    sampling and detokenization are not in it.

    Of the preemptions, `num_swaps` moved KV to host memory, `num_swapped_bytes` in all; `num_refused_swaps` found no
    room there and `num_lost_swaps` did not arrive, so that these were computed again.

    `num_proposals` counts lists of drafts that were verified, `num_draft_tokens` their drafts; `accepted_by_position`
    has the accepted ones by their depth, counted from 0, and `tried_by_position` those whose predecessors were all
    accepted (of the siblings in a tree, one): the quotient is how often a draft at that depth is right.
    """

    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_computed_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_swaps: int = 0
    num_refused_swaps: int = 0
    num_lost_swaps: int = 0
    num_swapped_bytes: int = 0
    num_finished: int = 0
    num_proposals: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    python_s: float = 0.0
    times_s: dict[str, float] = field(default_factory=dict)
    accepted_by_position: dict[int, int] = field(default_factory=dict)
    tried_by_position: dict[int, int] = field(default_factory=dict)

    def snapshot(self) -> EngineStats:
        """A copy to measure from."""
        return replace(
            self,
            times_s=dict(self.times_s),
            accepted_by_position=dict(self.accepted_by_position),
            tried_by_position=dict(self.tried_by_position),
        )

    def since(self, before: EngineStats) -> dict[str, Any]:
        """What was added after a snapshot, as plain data."""
        now, then = asdict(self), asdict(before)
        tables = {name: {key: amount - then[name].get(key, 0) for key, amount in now[name].items()} for name in _TABLES}
        return {name: now[name] - then[name] for name in now if name not in tables} | tables

    def add_step(self, num_tokens: int, plan_s: float, times_s: Mapping[str, float], commit_s: float) -> None:
        """Counts a step: its tokens, and the seconds of planning, of the executor's phases and of the commit."""
        self.num_steps += 1
        self.num_computed_tokens += num_tokens
        self.python_s += plan_s + times_s.get("build", 0.0) + commit_s
        for phase, seconds in {"plan": plan_s, **times_s, "commit": commit_s}.items():
            self.times_s[phase] = self.times_s.get(phase, 0.0) + seconds
