"""Ranking, top_k, top_p and min_p against a plain reference; ties; rows that need more ranks than the first guess."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from tokenloom.sampling import SamplingRow
from tokenloom.sampling.filtering import Limits, rank_tokens, ranked_candidates
from tokenloom.sampling_params import SamplingParams


def random_scores(num_rows: int, vocab_size: int, spread: float = 3.0) -> Tensor:
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * spread
    return logits - logits.amax(dim=-1, keepdim=True)


def kept_sets(scores: Tensor, limits: Limits) -> list[dict[int, float]]:
    """token id -> score of the kept tokens of each row."""
    found: dict[int, dict[int, float]] = {}
    for candidates in ranked_candidates(scores, limits):
        for row, ids, kept in zip(
            candidates.rows.tolist(), candidates.token_ids.tolist(), candidates.scores.tolist(), strict=True
        ):
            assert row not in found, f"row {row} appears twice"
            found[row] = {token_id: score for token_id, score in zip(ids, kept) if score > -torch.inf}
    return [found[row] for row in range(len(scores))]


def limits_of(settings: list[tuple[int, float, float]]) -> Limits:
    columns = list(zip(*settings, strict=True))
    return Limits(
        top_k=torch.tensor(columns[0], dtype=torch.int64).unsqueeze(1),
        top_p=torch.tensor(columns[1], dtype=torch.float32).unsqueeze(1),
        min_p=torch.tensor(columns[2], dtype=torch.float32).unsqueeze(1),
        max_top_k=max(columns[0]),
    )


@pytest.mark.parametrize("vocab_size", [1, 2, 17, 129, 1000])
@pytest.mark.parametrize("num_distinct", [1, 3, 1000])
def test_ranks_descend_and_equal_scores_go_by_lowest_id(vocab_size: int, num_distinct: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    scores = -torch.randint(0, num_distinct, (3, vocab_size), generator=generator).float()
    scores[0, 0] = -torch.inf
    for width in {1, max(1, vocab_size // 2), vocab_size}:
        token_ids, ranked = rank_tokens(scores, width)
        for row in range(3):
            values = scores[row].tolist()
            expected = sorted(range(vocab_size), key=lambda t, values=values: (-values[t], t))[:width]  # type: ignore[misc]
            assert token_ids[row].tolist() == expected
            assert ranked[row].tolist() == [values[token_id] for token_id in expected]


def test_negative_zero_ranks_as_zero() -> None:
    token_ids, _ = rank_tokens(torch.tensor([[-1.0, -0.0, 0.0, -0.0]]), 4)
    assert token_ids.tolist() == [[1, 2, 3, 0]]


@pytest.mark.parametrize("vocab_size", [5, 40, 600])
def test_kept_tokens_equal_the_plain_reference_on_a_grid(vocab_size: int, plain: Any) -> None:
    top_ks = [1, 2, min(7, vocab_size), vocab_size - 1, vocab_size]
    grid = list(itertools.product(top_ks, [1e-9, 0.1, 0.5, 0.9, 0.999, 1.0], [0.0, 0.02, 0.3, 1.0]))
    scores = random_scores(len(grid), vocab_size)
    kept = kept_sets(scores, limits_of(grid))
    for row, (top_k, top_p, min_p) in enumerate(grid):
        params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
        assert kept[row].keys() == plain.kept(scores[row].tolist(), SamplingRow(params, seed=0)).keys(), grid[row]
        assert all(score == float(scores[row, token_id]) for token_id, score in kept[row].items())


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    scores = torch.tensor([[0.25, 0.5, 0.125, 0.125]]).log()
    scores = scores - scores.amax()
    smallest = {0.49: {1}, 0.5: {1}, 0.51: {0, 1}, 0.75: {0, 1}, 0.76: {0, 1, 2}, 0.9: {0, 1, 2, 3}}
    for top_p, expected in smallest.items():
        assert kept_sets(scores, limits_of([(4, top_p, 0.0)]))[0].keys() == expected, top_p


def test_top_p_sums_what_top_k_and_min_p_left() -> None:
    scores = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    scores = scores - scores.amax()
    # Of the two best, 0.4 / 0.7 = 57 % is the first: 0.5 keeps it alone, though it is only 40 % of the whole.
    assert kept_sets(scores, limits_of([(2, 0.5, 0.0)]))[0].keys() == {0}
    assert kept_sets(scores, limits_of([(4, 0.5, 0.7)]))[0].keys() == {0}
    assert kept_sets(scores, limits_of([(4, 0.5, 0.0)]))[0].keys() == {0, 1}


def test_top_k_keeps_exactly_k_among_equal_scores() -> None:
    scores = torch.tensor([[-1.0, 0.0, 0.0, 0.0, -1.0]])
    assert kept_sets(scores, limits_of([(2, 1.0, 0.0)]))[0].keys() == {1, 2}
    assert kept_sets(scores, limits_of([(4, 1.0, 0.0)]))[0].keys() == {0, 1, 2, 3}


def test_rows_that_keep_many_tokens_are_ranked_as_far_as_they_need() -> None:
    vocab_size = 9000
    spreads = torch.tensor([[30.0], [2.0], [0.3], [0.0], [30.0], [0.3]])
    logits = torch.randn(6, vocab_size, generator=torch.Generator().manual_seed(2)) * spreads
    scores = logits - logits.amax(dim=-1, keepdim=True)
    settings = [(vocab_size, 0.9, 0.0)] * 4 + [(5000, 1.0, 0.0), (5000, 0.5, 0.0)]
    together = kept_sets(scores, limits_of(settings))
    widths = [len(kept) for kept in together]
    assert widths[0] < 256 < widths[1] < 4096 < widths[2] <= widths[3]
    assert widths[3:5] == [8100, 5000]  # nine tenths of equal probabilities; exactly k
    for row in range(6):
        assert kept_sets(scores[row : row + 1], limits_of(settings[row : row + 1])) == [together[row]]


def test_kept_tokens_do_not_depend_on_the_number_of_threads() -> None:
    scores = random_scores(3, 40_000, spread=1.5)
    limits = limits_of([(40_000, 0.97, 0.0), (20_000, 0.9, 0.0), (40_000, 0.5, 0.001)])
    num_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = kept_sets(scores, limits)
        torch.set_num_threads(2)
        two = kept_sets(scores, limits)
    finally:
        torch.set_num_threads(num_threads)
    assert one == two
