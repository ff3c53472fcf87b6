"""Logprobs: the model's raw distribution, only for rows that ask, each with its own number of top tokens."""

from __future__ import annotations

import pytest
import torch

from tokenloom.sampling import SamplingBatch, SamplingRow, raw_logprobs, sample
from tokenloom.sampling.logprobs import prompt_logprobs
from tokenloom.sampling_params import SamplingParams


def test_values_are_the_log_softmax_of_the_unprocessed_logits() -> None:
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(0)) * 3
    rows = [
        SamplingRow(SamplingParams(temperature=0.3, top_k=5, logprobs=4, min_tokens=1), 1, forbidden_stop_ids=(8,)),
        SamplingRow(SamplingParams(temperature=0), 2),
        SamplingRow(SamplingParams(temperature=0, logprobs=0), 3),
    ]
    result = sample(logits, SamplingBatch.build(rows, 300))
    assert result.logprobs is not None
    found = result.logprobs.to_host()
    assert list(found) == [0, 2]
    expected = logits.log_softmax(dim=-1)
    for row in (0, 2):
        token_id = int(result.token_ids[row])
        assert found[row].token_id == token_id
        assert found[row].logprob == float(expected[row, token_id])
    best = expected[0].topk(4)
    assert found[0].top == tuple(zip(best.indices.tolist(), best.values.tolist()))
    assert found[2].top == ()


def test_rows_may_ask_for_different_numbers_and_more_than_there_are() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]]).repeat(3, 1)
    rows = [SamplingRow(SamplingParams(temperature=0, logprobs=count), 0) for count in (1, 20, 2)]
    result = sample(logits, SamplingBatch.build(rows, 3))
    assert result.logprobs is not None
    tops = [[token_id for token_id, _ in entry.top] for entry in result.logprobs.to_host().values()]
    assert tops == [[2], [2, 1, 0], [2, 1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_alone_equals_the_row_in_a_batch(dtype: torch.dtype) -> None:
    logits = torch.randn(8, 5000, generator=torch.Generator().manual_seed(1)).to(dtype)
    rows = [SamplingRow(SamplingParams(logprobs=count), seed=count) for count in range(8)]
    together = sample(logits, SamplingBatch.build(rows, 5000)).logprobs
    assert together is not None
    for index, row in enumerate(rows):
        alone = sample(logits[index : index + 1], SamplingBatch.build([row], 5000)).logprobs
        assert alone is not None
        assert alone.to_host()[0] == together.to_host()[index]


def test_equal_probabilities_are_listed_by_lowest_id() -> None:
    batch = SamplingBatch.build([SamplingRow(SamplingParams(temperature=0, logprobs=5), 0)], 400)
    result = sample(torch.zeros(1, 400), batch)
    assert result.logprobs is not None
    assert [token_id for token_id, _ in result.logprobs.to_host()[0].top] == [0, 1, 2, 3, 4]


def test_logprobs_of_tokens_that_verification_emitted() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    batch = SamplingBatch.build([SamplingRow(SamplingParams(logprobs=0), 0)], 3)
    found = raw_logprobs(logits, torch.tensor([1]), batch.groups)
    assert found is not None
    assert found.to_host()[0].logprob == float(logits.log_softmax(dim=-1)[0, 1])


def test_nothing_is_computed_if_no_row_asks() -> None:
    batch = SamplingBatch.build([SamplingRow(SamplingParams(), 0)], 3)
    assert raw_logprobs(torch.zeros(1, 3), torch.tensor([1]), batch.groups) is None


@pytest.mark.parametrize("num_rows", [1, 2, 7])
@pytest.mark.parametrize("num_top", [0, 3, 20])
def test_prompt_logprobs_are_computed_in_blocks(monkeypatch: pytest.MonkeyPatch, num_rows: int, num_top: int) -> None:
    vocab_size, sizes = 10, list[int]()
    monkeypatch.setattr("tokenloom.sampling.logprobs._MAX_LOGITS", num_rows * vocab_size + 3)
    generator = torch.Generator().manual_seed(0)
    hidden, head = torch.randn(7, 5, generator=generator), torch.randn(5, vocab_size, generator=generator)

    def compute_logits(rows: torch.Tensor) -> torch.Tensor:
        sizes.append(len(rows))
        return rows @ head

    token_ids = torch.tensor([3, 1, 4, 1, 5, 9, 2])
    found = prompt_logprobs(hidden, token_ids, num_top, vocab_size, compute_logits)
    assert max(sizes) == num_rows
    assert sum(sizes) == 7
    expected = (hidden @ head).log_softmax(dim=-1)
    for row, entry in enumerate(found):
        assert entry.token_id == int(token_ids[row])
        assert entry.logprob == pytest.approx(float(expected[row, token_ids[row]]), abs=1e-5)
        best = expected[row].topk(min(num_top, vocab_size))
        assert [token_id for token_id, _ in entry.top] == best.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_vocabulary_above_the_limit_is_computed_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenloom.sampling.logprobs._MAX_LOGITS", 3)
    found = prompt_logprobs(torch.eye(4), torch.arange(4), 1, 4, lambda rows: rows)
    assert [entry.top[0][0] for entry in found] == [0, 1, 2, 3]


def test_the_rank_of_a_token_is_its_place_among_all_of_them() -> None:
    """The lowest id comes first among equals, as in the list of the most likely ones."""
    logits = torch.tensor([[0.5, 2.0, 0.5, -float("inf"), 0.5]]).repeat(5, 1)
    rows = [SamplingRow(SamplingParams(logprobs=1), 0)] * 5
    found = raw_logprobs(logits, torch.arange(5), SamplingBatch.build(rows, 5).groups)
    assert found is not None
    entries = found.to_host().values()
    assert [entry.rank for entry in entries] == [2, 1, 3, 5, 4]
    scores = torch.randn(40, 300, generator=torch.Generator().manual_seed(3)).round(decimals=1)
    given = torch.randint(300, (40,), generator=torch.Generator().manual_seed(4))
    for entry in prompt_logprobs(scores, given, 20, 300, lambda hidden: hidden):
        places = [token_id for token_id, _ in entry.top]
        if entry.token_id in places:
            assert entry.rank == 1 + places.index(entry.token_id)
        else:
            assert entry.rank is not None
            assert entry.rank > 20
