"""commit_row: the first of stop token and cap ends a run; everything else follows the one truncated list."""

from __future__ import annotations

from itertools import product

import pytest

from tokenloom.batch import RowPlan, RowResult, TokenLogprobs
from tokenloom.commit import commit_row, make_output
from tokenloom.request import FinishReason, Request
from tokenloom.testing.stub_model import stub_request

STOP = 99


def verified_request(num_drafts: int, max_tokens: int = 100) -> tuple[Request, RowPlan]:
    """A request with 5 tokens, 4 of them computed, whose last one and its drafts are in flight."""
    request = stub_request("r", range(5), max_tokens, stop_token_ids=frozenset({STOP}))
    request.num_computed_tokens = request.max_computed_tokens = 4
    request.num_inflight_tokens = 1 + num_drafts
    request.draft_token_ids = list(range(10, 10 + num_drafts))
    return request, RowPlan("r", 4, 1 + num_drafts, tuple(request.draft_token_ids), (), True)


def emit(tokens: list[int], num_accepted: int | None = None, **fields: object) -> RowResult:
    accepted = len(tokens) - 1 if num_accepted is None else num_accepted
    return RowResult("r", tokens, accepted, **fields)  # type: ignore[arg-type]


def test_stop_inside_an_accepted_run_wins_over_the_cap_behind_it() -> None:
    """The case of the public reports: [10, 11, STOP, 20, 21, 22] with 5 tokens allowed ends with stop at 3."""
    request, row = verified_request(5, max_tokens=5)
    assert commit_row(request, row, emit([10, 11, STOP, 20, 21, 22])) is FinishReason.STOP
    assert request.stop_reason == STOP
    assert request.output_token_ids == [10, 11, STOP]


@pytest.mark.parametrize(("max_tokens", "stop_at"), list(product(range(1, 8), range(7))))
def test_first_of_stop_and_cap_ends_the_run(max_tokens: int, stop_at: int) -> None:
    run = [10, 11, 12, 13, 14, 15]
    if stop_at < 6:
        run[stop_at] = STOP
    request, row = verified_request(5, max_tokens)
    result = emit(run, logprobs=tuple(TokenLogprobs(t, -1.0) for t in run))
    reason = commit_row(request, row, result)
    output = make_output(request, 0, result, 1.0)
    count = min(max_tokens, stop_at + 1, 6)
    assert output.token_ids == request.output_token_ids == run[:count]
    assert [entry.token_id for entry in output.logprobs] == run[:count]
    if stop_at < max_tokens and stop_at < 6:
        assert (reason, output.stop_reason) == (FinishReason.STOP, STOP)
    elif max_tokens <= 6:
        assert (reason, output.stop_reason) == (FinishReason.LENGTH, None)
    else:
        assert reason is None
    assert request.num_computed_tokens == min(10, request.num_tokens)


@pytest.mark.parametrize("num_accepted", range(6))
def test_frontier_ends_behind_the_last_accepted_draft(num_accepted: int) -> None:
    request, row = verified_request(5)
    commit_row(request, row, emit([*range(10, 10 + num_accepted), 50]))
    assert request.num_computed_tokens == 5 + num_accepted
    assert request.num_tokens == request.num_computed_tokens + 1
    assert (request.num_inflight_tokens, request.max_computed_tokens) == (0, 5 + num_accepted)
    assert (request.draft_token_ids, request.draft_parents) == ([], [])


def test_prompt_chunk_yields_nothing_and_moves_the_frontier() -> None:
    request = stub_request("r", range(10))
    request.num_inflight_tokens = 4
    assert commit_row(request, RowPlan("r", 0, 4, (), (), False), RowResult("r", [])) is None
    assert request.output_token_ids == []
    assert (request.num_computed_tokens, request.num_inflight_tokens, request.num_recomputed_tokens) == (4, 0, 0)


def test_recomputed_tokens_are_those_below_the_old_frontier() -> None:
    request = stub_request("r", range(10))
    request.max_computed_tokens = 6
    for start, count, expected in ((0, 4, 4), (4, 4, 6), (8, 1, 6)):
        request.num_inflight_tokens = count
        commit_row(request, RowPlan("r", start, count, (), (), False), RowResult("r", []))
        assert request.num_recomputed_tokens == expected
    assert request.max_computed_tokens == 9


def test_rejected_drafts_do_not_count_as_computed_before() -> None:
    request, row = verified_request(3)
    commit_row(request, row, emit([50]))
    request.num_inflight_tokens = 1
    commit_row(request, RowPlan("r", 5, 1, (), (), True), emit([51]))
    assert request.num_recomputed_tokens == 0


def test_drafts_are_cut_to_what_may_still_be_emitted() -> None:
    """k drafts can yield k + 1 tokens, so of 3 tokens left only 2 are worth drafting."""
    for left, expected in ((1, 0), (2, 1), (3, 2), (4, 3), (9, 4)):
        request, row = verified_request(0, max_tokens=1 + left)
        commit_row(request, row, emit([50], next_draft_token_ids=(1, 2, 3, 4), next_draft_parents=(-1, -1, 0, 1)))
        assert request.draft_token_ids == [1, 2, 3, 4][:expected]
        assert request.draft_parents == [-1, -1, 0, 1][:expected]


def test_ended_request_keeps_no_drafts() -> None:
    request, row = verified_request(1)
    commit_row(request, row, emit([STOP], next_draft_token_ids=(1, 2)))
    assert request.draft_token_ids == []


def test_tokens_before_a_row_error_are_kept() -> None:
    request, row = verified_request(3)
    run = tuple(TokenLogprobs(token_id, -1.0) for token_id in (10, 11))
    result = emit([10, 11], 2, error="every token is forbidden", logprobs=run)
    assert commit_row(request, row, result) is FinishReason.ERROR
    assert make_output(request, 0, result, 1.0).logprobs == run
    assert request.output_token_ids == [10, 11]
    assert request.error == "every token is forbidden"
    assert request.num_computed_tokens == 4


@pytest.mark.parametrize(
    ("run", "max_tokens", "reason"),
    [([10, STOP, 12], 9, FinishReason.STOP), ([10, 11], 2, FinishReason.LENGTH), ([STOP], 9, FinishReason.STOP)],
)
def test_stop_or_cap_before_a_row_error_comes_first(run: list[int], max_tokens: int, reason: FinishReason) -> None:
    request, row = verified_request(3, max_tokens)
    assert commit_row(request, row, emit(run, len(run), error="every token is forbidden")) is reason
    assert request.error is None


def test_row_error_ends_the_request_without_tokens() -> None:
    request, row = verified_request(2)
    assert commit_row(request, row, RowResult("r", [], error="logits are NaN")) is FinishReason.ERROR
    assert request.error == "logits are NaN"
    assert request.output_token_ids == []
    assert request.num_computed_tokens == 4, "memory that may be bad is not below the frontier"
    assert request.num_inflight_tokens == 0
