"""SamplingBatch: what it lays out from requests, and how rows are selected for a step."""

from __future__ import annotations

import pytest
import torch

from tokenloom.sampling import SamplingBatch, SamplingRow
from tokenloom.sampling_params import SamplingParams

ROWS = [
    SamplingRow(SamplingParams(temperature=0), seed=1),
    SamplingRow(SamplingParams(temperature=0.5, logprobs=3), seed=-2, choice=1, position=5),
    SamplingRow(SamplingParams(top_k=200, top_p=0.9, min_p=0.1), seed=2**63 - 1),
    SamplingRow(
        SamplingParams(top_k=7, min_tokens=4, logprobs=0), seed=-(2**63), position=2, forbidden_stop_ids=(3, 9)
    ),
]


def test_rows_fall_into_the_path_that_their_params_ask_for() -> None:
    batch = SamplingBatch.build(ROWS, vocab_size=100)
    groups = batch.groups
    assert groups.greedy_rows.tolist() == [0]
    assert groups.plain_rows.tolist() == [1]
    assert groups.ranked_rows.tolist() == [2, 3]
    assert groups.max_top_k == 100
    assert (groups.logprob_rows, groups.num_logprobs) == ((1, 3), (3, 0))


@pytest.mark.parametrize(("top_k", "is_ranked"), [(-1, False), (0, False), (99, True), (100, False), (101, False)])
def test_top_k_of_the_vocabulary_or_more_is_off(top_k: int, is_ranked: bool) -> None:
    batch = SamplingBatch.build([SamplingRow(SamplingParams(top_k=top_k), seed=0)], vocab_size=100)
    assert (len(batch.groups.ranked_rows) == 1) is is_ranked
    assert batch.top_k.tolist() == [[99 if is_ranked else 100]]


def test_tensors_hold_the_settings() -> None:
    batch = SamplingBatch.build(ROWS, vocab_size=100)
    assert batch.num_rows == 4
    assert batch.temperature.tolist() == [[1.0], [0.5], [1.0], [1.0]]
    assert batch.seeds.tolist() == [1, -2, 2**63 - 1, -(2**63)]
    assert batch.choice.tolist() == [0, 1, 0, 0]
    assert batch.position.tolist() == [0, 5, 0, 2]
    assert batch.edits is not None
    assert batch.edits.bias is batch.edits.allowed is None
    forbidden = batch.edits.forbidden
    assert forbidden is not None
    assert (forbidden.index.tolist(), forbidden.numbers.tolist()) == ([303, 309], [4, 4])


def test_select_repeats_and_leaves_out_rows() -> None:
    batch = SamplingBatch.build(ROWS, vocab_size=100)
    step = batch.select(rows=[3, 3, 3, 1], offsets=[0, 1, 2, 0])
    assert step.num_rows == 4
    assert step.position.tolist() == [2, 3, 4, 5]
    assert step.top_k.tolist() == [[7], [7], [7], [100]]
    assert step.seeds.tolist() == [-(2**63)] * 3 + [-2]
    assert step.edits is not None
    assert step.edits.forbidden is not None
    assert step.edits.forbidden.index.tolist() == [3, 9, 103, 109, 203, 209]
    assert step.groups.ranked_rows.tolist() == [0, 1, 2]
    assert step.groups.plain_rows.tolist() == [3]
    assert step.groups.max_top_k == 7
    assert step.groups.logprob_rows == (0, 1, 2, 3)


def test_select_follows_positions_that_were_moved_in_place() -> None:
    batch = SamplingBatch.build(ROWS, vocab_size=100)
    batch.position.add_(torch.tensor([1, 2, 3, 4]))
    assert batch.select([0, 1, 2, 3], [0, 0, 0, 0]).position.tolist() == [1, 7, 3, 6]


def test_select_may_be_empty() -> None:
    step = SamplingBatch.build(ROWS, vocab_size=100).select([], [])
    assert step.num_rows == 0
    assert step.temperature.shape == (0, 1)


def test_minimum_already_reached_needs_no_edit() -> None:
    row = SamplingRow(SamplingParams(min_tokens=2), seed=0, position=2, forbidden_stop_ids=(1,))
    assert SamplingBatch.build([row], vocab_size=100).edits is None


def test_stop_id_outside_the_vocabulary_is_our_bug() -> None:
    row = SamplingRow(SamplingParams(min_tokens=2), seed=0, forbidden_stop_ids=(100,))
    with pytest.raises(AssertionError, match=r"outside 0\.\.99"):
        SamplingBatch.build([row], vocab_size=100)
