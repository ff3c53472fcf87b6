"""Which tokens of the prompt a step yields logprobs of: each once, in order, whatever the chunks and preemptions."""

from __future__ import annotations

import random

import pytest

from tokenloom.batch import RowPlan, RowResult, TokenLogprobs, draft_paths
from tokenloom.commit import commit_row, make_output
from tokenloom.engine_output import EngineOutput
from tokenloom.request import Request
from tokenloom.row_plan import prompt_logprob_slots
from tokenloom.sampling_params import SamplingParams


def request_of(num_prompt_tokens: int, prompt_logprobs: int | None = 0, choice_index: int = 0) -> Request:
    params = SamplingParams(max_tokens=3, prompt_logprobs=prompt_logprobs)
    prompt = list(range(100, 100 + num_prompt_tokens))
    return Request("r", prompt, params, 0, num_prompt_tokens + 3, choice_index=choice_index)


def run_step(request: Request, count: int) -> EngineOutput:
    """Computes `count` tokens from the frontier, and says of prompt tokens what the plan asks for."""
    num_before = request.num_output_tokens
    start, end = request.num_computed_tokens, request.num_computed_tokens + count
    slots = prompt_logprob_slots(request, start, end)
    assert slots[0] == slots[1] or start <= slots[0] < slots[1] <= end
    entries = tuple(TokenLogprobs(request.prompt_token_ids[slot + 1], -1.0) for slot in range(*slots))
    samples = end == request.num_tokens
    row = RowPlan("r", start, count, (), (), samples, prompt_logprob_slots=slots)
    request.num_inflight_tokens = count
    result = RowResult("r", [7] if samples else [], prompt_logprobs=entries)
    commit_row(request, row, result)
    return make_output(request, num_before, result, 1.0)


@pytest.mark.parametrize("seed", range(30))
def test_every_prompt_token_is_asked_for_once(seed: int) -> None:
    rng = random.Random(seed)
    request = request_of(rng.randrange(1, 20))
    told: list[EngineOutput] = []
    while request.num_output_tokens < 3:
        if rng.random() < 0.3:
            request.num_computed_tokens = 0  # preempted: all of it runs again
        told.append(run_step(request, rng.randrange(1, request.num_tokens - request.num_computed_tokens + 1)))
    assert [entry.token_id for entry in request.prompt_logprobs] == request.prompt_token_ids[1:]
    (found,) = [output.prompt_logprobs for output in told if output.prompt_logprobs is not None]
    assert found == (None, *request.prompt_logprobs)
    assert next(output for output in told if output.token_ids).prompt_logprobs == found


@pytest.mark.parametrize(("prompt_logprobs", "choice_index"), [(None, 0), (5, 1)])
def test_requests_that_do_not_compute_them_ask_for_nothing(prompt_logprobs: int | None, choice_index: int) -> None:
    request = request_of(9, prompt_logprobs, choice_index)
    assert request.num_missing_prompt_logprobs == 0
    assert prompt_logprob_slots(request, 0, 9) == (0, 0)
    assert run_step(request, 9).prompt_logprobs is None


def test_step_behind_the_known_ones_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="logprobs are known up to slot 0"):
        prompt_logprob_slots(request_of(9), 4, 8)


def test_failed_step_adds_no_prompt_logprobs() -> None:
    request = request_of(3)
    request.num_inflight_tokens = 3
    row = RowPlan("r", 0, 3, (), (), True, prompt_logprob_slots=(0, 2))
    result = RowResult("r", [], error="on purpose")
    commit_row(request, row, result)
    assert (make_output(request, 0, result, 1.0).prompt_logprobs, request.prompt_logprobs) == (None, [])


def test_paths_of_chains_and_trees() -> None:
    def paths(drafts: tuple[int, ...], parents: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
        return draft_paths(RowPlan("r", 0, 1 + len(drafts), drafts, (), True, draft_parents=parents))

    assert paths(()) == [()]
    assert paths((5, 6, 7)) == [(), (5,), (5, 6), (5, 6, 7)]
    assert paths((5, 6, 7, 8, 9), (-1, -1, 0, 1, 3)) == [(), (5,), (6,), (5, 7), (6, 8), (6, 8, 9)]
