"""From a granted count to the executor's row plan."""

from __future__ import annotations

from tokenloom.batch import BlockTableUpdate, NewRow, RowPlan
from tokenloom.kv.draft_room import DraftRoom
from tokenloom.kv.manager import KVManager
from tokenloom.request import Request

__all__ = ["build_row", "prompt_logprob_slots"]


def build_row(
    request: Request, num_tokens: int, kv: KVManager, is_new: bool, max_drafts: int, room: DraftRoom | None = None
) -> RowPlan:
    """Allocates a request's blocks for a step, which is in flight from now on, and says what the executor has to do.

    Args:
        request: running; its frontier is where the step starts.
        num_tokens: granted count; what exceeds the request's own tokens verifies drafts.
        kv: gives the blocks.
        is_new: whether the executor does not know the request.
        max_drafts: most drafts to propose after the step, if it samples.
        room: for drafts in a drafter's own KV groups; None if it has none.
    """
    start, request.num_inflight_tokens = request.num_computed_tokens, num_tokens
    end, num_own = start + num_tokens, request.num_tokens - start
    samples = num_tokens >= num_own
    num_drafts = num_tokens - num_own if samples else 0
    most = max_drafts if samples else 0
    num_extra = 0
    if room is not None and most:
        most = num_extra = room.take(request, end, most)
    wants_logprobs = request.params.prompt_logprobs is not None
    # By place: this runs for each row of each step, and keywords would take as long again.
    return RowPlan(
        request.request_id,
        start,
        num_tokens,
        tuple(request.draft_token_ids[:num_drafts]) if num_drafts else (),
        _first_tables(request, end, kv, num_extra) if is_new else kv.grow(request, end, num_extra),
        samples,
        most,
        tuple(request.draft_parents[:num_drafts]) if num_drafts else (),
        prompt_logprob_slots(request, start, end) if wants_logprobs else (0, 0),
        _new_row(request) if is_new else None,
    )


def _first_tables(request: Request, num_slots: int, kv: KVManager, num_drafts: int) -> tuple[BlockTableUpdate, ...]:
    """The executor has no table yet: all of it is new, but for the null blocks of a window."""
    num_held = max(num_slots, kv.reserved_blocks(request) * kv.block_size)
    updates = kv.grow(request, num_held, max(0, num_slots + num_drafts - num_held))
    return tuple(
        BlockTableUpdate(update.num_null_blocks, update.num_null_blocks, tuple(table[update.num_null_blocks :]))
        for update, table in zip(updates, kv.tables(request.request_id), strict=True)
    )


def prompt_logprob_slots(request: Request, start: int, end: int) -> tuple[int, int]:
    """Slots in [start, end) behind which stand prompt tokens whose logprobs are wanted and not known yet."""
    if request.num_missing_prompt_logprobs == 0:
        return (0, 0)
    first = len(request.prompt_logprobs)  # the token at first + 1 is the next one
    assert start <= first, f"{request.request_id}: step starts at {start}, logprobs are known up to slot {first}"
    return (first, max(first, min(end, request.num_prompt_tokens - 1)))


def _new_row(request: Request) -> NewRow:
    return NewRow(
        token_ids=request.prompt_token_ids + request.output_token_ids,
        num_prompt_tokens=request.num_prompt_tokens,
        params=request.params,
        seed=request.seed,
        choice_index=request.choice_index,
        forbidden_stop_ids=tuple(sorted(request.stop_token_ids)),
        bad_words=request.bad_words,
        processors=request.logits_processors,
        constraint=request.constraint,
    )
