"""How a step's result enters a request: the only place where output tokens are appended."""

from __future__ import annotations

from functools import lru_cache

from tokenloom.batch import RowPlan, RowResult, TokenLogprobs
from tokenloom.engine_output import EngineOutput, RequestTimes
from tokenloom.request import FinishReason, Request

__all__ = ["commit_row", "cut_output", "make_output"]


def commit_row(request: Request, row: RowPlan, result: RowResult) -> FinishReason | None:
    """Appends a row's tokens to its request and moves the computed frontier. Returns why that ends it, if it does.

    Tokens are scanned in order: the first stop token ends the request, else the length cap does; what lies behind is
    dropped. Rejected drafts leave the frontier behind their slots, which the next step overwrites. A row's error counts
    behind its tokens, so that a stop or the cap among them comes first.
    """
    num_rejected = len(row.draft_token_ids) - result.num_accepted_tokens if result.token_ids else 0
    frontier = row.num_computed_tokens + row.num_scheduled_tokens
    if request.max_computed_tokens > row.num_computed_tokens:
        request.num_recomputed_tokens += min(request.max_computed_tokens, frontier) - row.num_computed_tokens
    if request.max_computed_tokens < frontier - num_rejected:
        request.max_computed_tokens = frontier - num_rejected
    request.num_inflight_tokens -= row.num_scheduled_tokens
    if request.draft_token_ids:
        request.draft_token_ids, request.draft_parents = [], []
    if result.prompt_logprobs:
        request.prompt_logprobs += result.prompt_logprobs
    kept, reason, request.stop_reason = _scan(request, result.token_ids)
    request.output_token_ids += kept
    if reason is None and result.error is not None:
        # The frontier stays where it was: memory that may be bad must not be found by others.
        request.error = result.error
        reason = FinishReason.ERROR
    else:
        # Only where tokens were dropped can more be computed than is known.
        reached = frontier - num_rejected
        request.num_computed_tokens = reached if reason is None else min(reached, request.num_tokens)
    if reason is None and result.next_draft_token_ids:
        # Verifying k drafts can emit k + 1 tokens; more drafts than that allows are wasted.
        room = max(0, request.max_total_tokens - request.num_tokens - 1)
        request.draft_token_ids = list(result.next_draft_token_ids[:room])
        request.draft_parents = list(result.next_draft_parents[:room])
    return reason


def _all_prompt_logprobs(request: Request) -> tuple[TokenLogprobs | None, ...] | None:
    """Those of every token of the prompt, None for the first; None for a request that does not have them."""
    if request.params.prompt_logprobs is None or request.choice_index > 0:
        return None
    missing = request.num_missing_prompt_logprobs
    assert missing == 0, f"{request.request_id}: {missing} prompt logprobs are missing at its first token"
    return (None, *request.prompt_logprobs)


def _scan(request: Request, token_ids: list[int]) -> tuple[list[int], FinishReason | None, int | None]:
    stop_ids, last = request.stop_token_ids, request.max_total_tokens - request.num_tokens - 1
    for index, token_id in enumerate(token_ids):
        if token_id in stop_ids:
            return token_ids[: index + 1], FinishReason.STOP, token_id
        if index >= last:
            return token_ids[: index + 1], FinishReason.LENGTH, None
    return token_ids, None, None


def cut_output(request: Request, num_output_tokens: int, stop_reason: str) -> int:
    """Shortens a request's output to where a stop string begins; returns how many tokens that drops."""
    num_dropped = request.num_output_tokens - num_output_tokens
    assert num_dropped >= 0, f"{request.request_id}: {request.num_output_tokens} tokens cut to {num_output_tokens}"
    del request.output_token_ids[num_output_tokens:]
    request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens)
    request.stop_reason = stop_reason
    return num_dropped


def make_output(request: Request, num_before: int, result: RowResult, landed_s: float) -> EngineOutput:
    """What the caller is told of a request after a commit, and after its end if it ended.

    Args:
        request: whose.
        num_before: its output tokens before the commit.
        result: of its row.
        landed_s: when the step landed.
    """
    token_ids = request.output_token_ids[num_before:]
    first_s, token_s = request.first_scheduled_time_s, request.first_token_time_s
    # By place: this runs for each row of each step, and keywords would take as long again.
    return EngineOutput(
        request.request_id,
        token_ids,
        result.logprobs[: len(token_ids)],
        request.finish_reason,
        request.stop_reason,
        request.num_cached_tokens,
        request.error,
        landed_s,
        _times(request.arrival_time_s, first_s, token_s, request.finish_time_s),
        _all_prompt_logprobs(request) if token_ids and num_before == 0 else None,
    )


@lru_cache(maxsize=4096)
def _times(
    arrival_s: float, first_scheduled_s: float | None, first_token_s: float | None, finish_s: float | None
) -> RequestTimes:
    """The same for all but the first and the last tokens of a request."""
    return RequestTimes(arrival_s, first_scheduled_s, first_token_s, finish_s)
