"""Penalties, bias, allowed and bad tokens: a batch at once equals a plain reference; off means nothing is there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.core.sampling.plain_options import OptionRow, batch_of, plain_processed, random_logits, random_rows
from tokenloom.sampling import (
    AllowedTokens,
    RowHistory,
    SamplingBatch,
    SamplingRow,
    TokenHistory,
    process_logits,
    sample,
    target_probs,
    why_no_token,
)
from tokenloom.sampling_params import SamplingParams

OPTIONS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.7},
    "presence": {"presence_penalty": 1.1},
    "frequency": {"frequency_penalty": -0.6},
    "penalties": {"repetition_penalty": 0.8, "presence_penalty": -0.5, "frequency_penalty": 0.9},
    "bias": {"logit_bias": {0: 4.0, 3: -100.0, 8: 0.25}},
    "allowed": {"allowed_token_ids": [1, 4, 7, 8]},
    "min_tokens": {"min_tokens": 9, "max_tokens": 20},
}


def one(**params: Any) -> OptionRow:
    return OptionRow(SamplingParams(**params), prompt=(1, 2, 2), output=(3, 1, 3, 3), stop_ids=(5, 8))


def assert_processed(rows: Sequence[OptionRow], logits: Tensor) -> Tensor:
    processed = process_logits(logits, batch_of(rows, logits.shape[1]))
    expected = torch.tensor([plain_processed(logits[index].tolist(), row) for index, row in enumerate(rows)])
    torch.testing.assert_close(processed, expected, rtol=1e-6, atol=1e-6)
    return processed


@pytest.mark.parametrize("changes", OPTIONS.values(), ids=OPTIONS)
def test_each_option_alone_equals_the_plain_reference(changes: dict[str, Any]) -> None:
    logits = random_logits(1, 9)
    assert not torch.equal(assert_processed([one(**changes)], logits), logits), "the option changes nothing"


@pytest.mark.parametrize("vocab_size", [5, 17, 400])
def test_any_mixture_of_options_equals_the_plain_reference(vocab_size: int) -> None:
    rows = random_rows(150, vocab_size, seed=vocab_size)
    assert_processed(rows, random_logits(150, vocab_size, seed=vocab_size))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whole_batch_equals_one_row_at_a_time_bit_by_bit(dtype: torch.dtype) -> None:
    rows = random_rows(60, 40, seed=1)
    logits = random_logits(60, 40).to(dtype)
    together = process_logits(logits, batch_of(rows, 40))
    for index, row in enumerate(rows):
        alone = process_logits(logits[index : index + 1], batch_of([row], 40))
        assert torch.equal(alone[0], together[index])


def test_grid_of_filters_under_penalties_samples_as_the_plain_reference(plain: Any) -> None:
    vocab_size = 30
    grid = itertools.product([-1, 0, 1, vocab_size, vocab_size + 1], [1e-9, 0.5, 1.0], [0, 1], [0, 1e-6, 1, 100])
    base = random_rows(120, vocab_size, seed=2)
    rows = [
        replace(row, params=row.params.with_changes(top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature))
        for row, (top_k, top_p, min_p, temperature) in zip(base, grid, strict=True)
    ]
    logits = random_logits(len(rows), vocab_size, seed=3)
    processed = [plain_processed(logits[index].tolist(), row) for index, row in enumerate(rows)]
    reachable = [index for index, values in enumerate(processed) if max(values) > -torch.inf]
    assert len(reachable) > 100
    together = sample(logits, batch_of(rows, vocab_size)).token_ids
    for index in reachable:
        expected = plain.sample(processed[index], rows[index].sampling_row)
        alone = sample(logits[index : index + 1], batch_of([rows[index]], vocab_size)).token_ids
        assert (int(together[index]), int(alone)) == (expected, expected), rows[index]


@pytest.mark.parametrize("penalty", [0.5, 1.0, 2.0])
def test_repetition_penalty_divides_positive_and_multiplies_negative_logits(penalty: float) -> None:
    row = OptionRow(SamplingParams(repetition_penalty=penalty), prompt=(0, 1), output=(2, 3))
    logits = torch.tensor([[4.0, -4.0, 3.0, -3.0, 0.5, -0.5]])
    processed = process_logits(logits, batch_of([row], 6))
    assert processed.tolist() == [[4 / penalty, -4 * penalty, 3 / penalty, -3 * penalty, 0.5, -0.5]]


def test_presence_and_frequency_count_the_output_alone() -> None:
    row = OptionRow(SamplingParams(presence_penalty=0.5, frequency_penalty=0.25), prompt=(0, 0, 1), output=(1, 2, 2))
    assert process_logits(torch.zeros(1, 4), batch_of([row], 4)).tolist() == [[0.0, -0.75, -1.0, 0.0]]


def test_bad_word_is_forbidden_only_behind_its_beginning_in_the_output() -> None:
    words = ((7,), (1, 2), (4, 1, 5), (1, 1, 6), (9, 9))
    rows = [
        OptionRow(SamplingParams(), prompt=(4, 1), output=output, bad_words=words)
        for output in [(), (1,), (4, 1), (1, 1), (1, 4)]
    ]
    processed = process_logits(torch.zeros(5, 10), batch_of(rows, 10))
    forbidden = [row.isneginf().nonzero().flatten().tolist() for row in processed]
    assert forbidden == [[7], [2, 7], [2, 5, 7], [2, 6, 7], [7]]


def test_rows_behind_drafts_see_the_drafts_as_output() -> None:
    """Chains and trees: each row equals one of a request that has emitted its path."""
    for row in random_rows(80, 12, seed=5):
        assumed = replace(row, num_drafts=len(row.output))
        emitted = replace(row, num_drafts=0)
        logits = random_logits(1, 12)
        batches = [batch_of([each], 12) for each in (assumed, emitted)]
        assert torch.equal(process_logits(logits, batches[0]), process_logits(logits, batches[1]))


def test_history_grown_token_by_token_equals_one_that_starts_there() -> None:
    params = SamplingParams(repetition_penalty=1.3, frequency_penalty=0.2)
    prompt, output = [5, 6, 5], [(index * 7) % 150 for index in range(400)]
    grown = TokenHistory(params, prompt, 3, [(7, 14), (0, 7, 14)])
    for start in range(0, 400, 3):
        grown.append(output[start : start + 3])
    fresh = TokenHistory(params, [*prompt, *output], 3, [(7, 14), (0, 7, 14)])
    by_token = [dict(zip(*(part.tolist() for part in history.counts()), strict=True)) for history in (grown, fresh)]
    assert by_token[0] == by_token[1]
    assert sum(by_token[0].values()) == 400
    assert by_token[0][6] == output.count(6)
    for drafts in ([], [7], [0, 7], [3, 7]):
        assert grown.bad_tokens(drafts) == fresh.bad_tokens(drafts)


def test_drafts_leave_the_history_as_it_was() -> None:
    history = TokenHistory(SamplingParams(frequency_penalty=1.0), [1, 2, 2], 1, [(2, 3)])
    before = [part.tolist() for part in history.counts()]
    assert [part.tolist() for part in history.counts([2, 9, 9])] == [[2, 9], [3.0, 2.0]]
    assert (history.bad_tokens([9]), history.bad_tokens([])) == ([], [3])
    assert [part.tolist() for part in history.counts()] == before == [[2], [2.0]]


def test_prompt_counts_for_the_repetition_penalty_only() -> None:
    params = SamplingParams(frequency_penalty=1.0)
    assert TokenHistory(params, [4, 5, 6], 3, []).counts()[0].tolist() == []
    both = params.with_changes(repetition_penalty=1.1)
    assert TokenHistory(both, [4, 5, 4], 3, []).counts()[0].tolist() == [4, 5]


def test_minimum_length_holds_position_by_position() -> None:
    row = OptionRow(SamplingParams(min_tokens=2), prompt=(1,), stop_ids=(0, 3))
    batch = SamplingBatch.build([row.sampling_row], 4).select([0] * 4, [0, 1, 2, 3])
    processed = process_logits(torch.zeros(4, 4), batch)
    assert processed.isneginf().sum(dim=1).tolist() == [2, 2, 0, 0]


def test_token_forbidden_twice_stays_forbidden_when_the_minimum_is_reached() -> None:
    row = OptionRow(SamplingParams(min_tokens=1), prompt=(1,), stop_ids=(2,), bad_words=((2,),))
    batch = SamplingBatch.build([row.sampling_row], 4).select([0, 0], [0, 1])
    assert process_logits(torch.zeros(2, 4), batch).isneginf().tolist() == [[False, False, True, False]] * 2


def test_callers_logits_are_left_alone() -> None:
    rows = random_rows(20, 10, seed=4)
    logits = random_logits(20, 10)
    untouched = logits.clone()
    process_logits(logits, batch_of(rows, 10))
    sample(logits, batch_of(rows, 10))
    assert torch.equal(logits, untouched)


def test_logits_that_are_no_contiguous_memory_are_processed_alike() -> None:
    rows = random_rows(20, 10, seed=6)
    logits = random_logits(20, 10)
    strided = torch.stack([logits, logits], dim=2)[:, :, 0]
    assert not strided.is_contiguous()
    batch = batch_of(rows, 10)
    assert torch.equal(process_logits(strided, batch), process_logits(logits, batch))


# ---- off ----


def test_options_that_are_off_leave_no_tensors_and_no_copy() -> None:
    rows = [SamplingRow(SamplingParams(temperature=t, top_p=0.9, top_k=5, logprobs=2), seed=1) for t in (0.0, 1.0)]
    batch = SamplingBatch.build(rows, 50)
    selected = batch.select([0, 0, 1], [0, 1, 0])
    for each in (batch, selected):
        assert (each.edits, each.history, each.processors) == (None, None, None)
        assert not each.changes_logits
    logits = random_logits(2, 50)
    assert process_logits(logits, batch).data_ptr() == logits.data_ptr()


def test_one_row_with_an_option_adds_entries_for_itself_alone() -> None:
    rows = [one(), one(logit_bias={3: 1.0}), one(frequency_penalty=0.5)]
    batch = batch_of(rows, 9)
    assert batch.edits is not None
    assert batch.edits.bias is not None
    assert batch.edits.allowed is batch.edits.forbidden is None
    assert batch.edits.bias.index.tolist() == [9 + 3]
    assert batch.history is not None
    assert sorted(batch.history.index.tolist()) == [18 + 1, 18 + 3]


def test_rows_without_their_option_in_a_selection_leave_nothing() -> None:
    batch = batch_of([one(), one(logit_bias={3: 1.0}, frequency_penalty=0.5)], 9).select([0, 0], [0, 0])
    assert (batch.edits, batch.history) == (None, None)


# ---- selection ----


def test_selection_takes_each_rows_changes_along() -> None:
    rows = random_rows(30, 20, seed=8)
    logits = random_logits(30, 20)
    batch = batch_of(rows, 20)
    order = [29, 3, 3, 17, 0, 8]
    expected = process_logits(logits, batch)[order]
    assert torch.equal(process_logits(logits[order], batch.select(order, [0] * 6)), expected)


def test_rows_that_know_their_tokens_are_not_moved_ahead() -> None:
    with pytest.raises(AssertionError, match="cannot be moved"):
        batch_of([one(frequency_penalty=0.5)], 9).select([0, 0], [0, 1])


# ---- no token left ----


def reason(rows: Sequence[OptionRow], row: int, logits: Tensor, allowed: AllowedTokens | None = None) -> str:
    batch = batch_of(rows, logits.shape[1])
    assert sample(logits, batch, allowed).invalid[row]
    return why_no_token(logits, batch, allowed, row)


def test_reason_names_what_forbids_every_token() -> None:
    params = SamplingParams(allowed_token_ids=[1, 2], min_tokens=4)
    fine = OptionRow(params, prompt=(1,), stop_ids=(1,))
    stuck = OptionRow(params, prompt=(1,), output=(0, 2), stop_ids=(1,), bad_words=((2, 2),))
    assert sample(torch.zeros(2, 4), batch_of([fine, stuck], 4)).invalid.tolist() == [False, True]
    assert reason([fine, stuck], 1, torch.zeros(2, 4)) == (
        "no token can be sampled at output position 2: every token is forbidden by allowed_token_ids and bad_words or "
        "min_tokens"
    )


def test_reason_names_the_constraint() -> None:
    allowed = AllowedTokens(torch.tensor([1]), torch.zeros(1, 4, dtype=torch.bool))
    found = reason([one(), one()], 1, random_logits(2, 9)[:, :4], allowed)
    assert found == "no token can be sampled at output position 4: every token is forbidden by the logits constraint"
    told = AllowedTokens(allowed.rows, allowed.mask, {1: "it gave up"})
    assert reason([one(), one()], 1, random_logits(2, 9)[:, :4], told) == f"{found} (it gave up)"


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_reason_names_broken_logits_before_everything_else(value: float) -> None:
    logits = random_logits(1, 9)
    logits[0, 3] = value
    assert reason([one(logit_bias={1: 1.0})], 0, logits) == "no token can be sampled: the model's logits are not finite"


# ---- distribution ----


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.6},
        {"top_p": 0.8},
        {"min_p": 0.2},
        {"repetition_penalty": 1.6},
        {"presence_penalty": 0.8, "frequency_penalty": -0.4},
        {"temperature": 1.4, "repetition_penalty": 0.7, "frequency_penalty": 0.5, "top_p": 0.9, "logit_bias": {0: 1.0}},
    ],
    ids=str,
)
def test_tokens_are_distributed_as_the_plain_reference_says(
    changes: dict[str, Any], plain: Any, assert_distributed: Callable[[Tensor, Tensor], None]
) -> None:
    num_trials, vocab_size = 20_000, 8
    logits = torch.linspace(-1.2, 1.5, vocab_size).roll(3).unsqueeze(0)
    row = OptionRow(SamplingParams(**changes), prompt=(1, 2), output=(3, 4, 3, 6))
    kept = plain.kept(plain_processed(logits[0].tolist(), row), row.sampling_row)
    probs = torch.full((vocab_size,), -torch.inf)
    probs[list(kept)] = torch.tensor(list(kept.values()))
    probs = probs.softmax(dim=0)
    torch.testing.assert_close(target_probs(logits, batch_of([row], vocab_size)).probs[0], probs, rtol=1e-5, atol=1e-6)
    batch = SamplingBatch.build([SamplingRow(row.params, seed=seed) for seed in range(num_trials)], vocab_size)
    history = row.history(0).history
    batch = batch.with_tokens([RowHistory(index, history) for index in range(num_trials)])
    tokens = sample(logits.expand(num_trials, -1), batch).token_ids
    assert set(tokens.tolist()) == set(kept)
    # Four or eight cells: the quantiles that the test knows.
    place = torch.zeros(vocab_size, dtype=torch.int64)
    ranked = probs.argsort(descending=True)
    num_cells = 8 if len(kept) == 8 else 4
    place[ranked] = torch.arange(vocab_size).clamp(max=num_cells - 1)
    assert_distributed(place[tokens], torch.zeros(num_cells).scatter_add(0, place, probs))
