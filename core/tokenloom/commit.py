"""How a step's result enters a request: the only place where output tokens are appended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenloom.batch import RowPlan, RowResult, TokenLogprobs
from tokenloom.engine_output import EngineOutput, RequestTimes
from tokenloom.request import FinishReason, Request

__all__ = ["Committed", "commit_row", "make_output"]


@dataclass(frozen=True, slots=True)
class Committed:
    """What one row added to its request: tokens after truncation, their logprobs, and why the request ended, if so.

    `prompt_logprobs` holds those of the whole prompt, with the first tokens of a request that wants them.
    """

    token_ids: list[int]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None


def commit_row(request: Request, row: RowPlan, result: RowResult) -> Committed:
    """Appends a row's tokens to its request and moves the computed frontier.

    Tokens are scanned in order: the first stop token ends the request, else the length cap does; what lies behind is
    dropped. Rejected drafts leave the frontier behind their slots, which the next step overwrites. A row's error counts
    behind its tokens, so that a stop or the cap among them comes first.
    """
    num_rejected = len(row.draft_token_ids) - result.num_accepted_tokens if result.token_ids else 0
    frontier = row.num_computed_tokens + row.num_scheduled_tokens
    request.num_recomputed_tokens += max(0, min(request.max_computed_tokens, frontier) - row.num_computed_tokens)
    request.max_computed_tokens = max(request.max_computed_tokens, frontier - num_rejected)
    request.num_inflight_tokens -= row.num_scheduled_tokens
    request.draft_token_ids = []
    request.draft_parents = []
    request.prompt_logprobs += result.prompt_logprobs
    is_first = not request.output_token_ids and bool(result.token_ids)
    kept, reason, stop_id = _scan(request, result.token_ids)
    request.output_token_ids.extend(kept)
    if reason is None and result.error is not None:
        # The frontier stays where it was: memory that may be bad must not be found by others.
        request.error = result.error
        reason = FinishReason.ERROR
    else:
        request.num_computed_tokens = min(frontier - num_rejected, request.num_tokens)
    if reason is None and result.next_draft_token_ids:
        # Verifying k drafts can emit k + 1 tokens; more drafts than that allows are wasted.
        room = max(0, request.max_total_tokens - request.num_tokens - 1)
        request.draft_token_ids = list(result.next_draft_token_ids[:room])
        request.draft_parents = list(result.next_draft_parents[:room])
    prompt_logprobs = _all_prompt_logprobs(request) if is_first else None
    return Committed(kept, result.logprobs[: len(kept)], reason, stop_id, prompt_logprobs)


def _all_prompt_logprobs(request: Request) -> tuple[TokenLogprobs | None, ...] | None:
    """Those of every token of the prompt, None for the first; None for a request that does not have them."""
    if request.params.prompt_logprobs is None or request.choice_index > 0:
        return None
    missing = request.num_missing_prompt_logprobs
    assert missing == 0, f"{request.request_id}: {missing} prompt logprobs are missing at its first token"
    return (None, *request.prompt_logprobs)


def _scan(request: Request, token_ids: Sequence[int]) -> tuple[list[int], FinishReason | None, int | None]:
    num_tokens = request.num_tokens
    for index, token_id in enumerate(token_ids):
        if token_id in request.stop_token_ids:
            return list(token_ids[: index + 1]), FinishReason.STOP, token_id
        if num_tokens + index + 1 >= request.max_total_tokens:
            return list(token_ids[: index + 1]), FinishReason.LENGTH, None
    return list(token_ids), None, None


def make_output(request: Request, committed: Committed, landed_s: float) -> EngineOutput:
    """What the caller is told of a request after a commit."""
    return EngineOutput(
        request_id=request.request_id,
        token_ids=committed.token_ids,
        logprobs=committed.logprobs,
        finish_reason=request.finish_reason,
        stop_reason=request.stop_reason,
        num_cached_tokens=request.num_cached_tokens,
        error=request.error,
        landed_s=landed_s,
        times=RequestTimes(
            request.arrival_time_s,
            request.first_scheduled_time_s,
            request.first_token_time_s,
            request.finish_time_s,
        ),
        prompt_logprobs=committed.prompt_logprobs,
    )
