"""sample and target_probs: exact against a plain reference, equal alone and in a batch, safe on extreme input."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tokenloom.sampling import AllowedTokens, SamplingBatch, SamplingRow, sample, target_probs
from tokenloom.sampling_params import SamplingParams


def random_logits(num_rows: int, vocab_size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(num_rows * 1000 + vocab_size)
    return (torch.randn(num_rows, vocab_size, generator=generator) * 4).to(dtype)


def grid_rows(vocab_size: int) -> list[SamplingRow]:
    """Every combination of edge values, each with a key of its own."""
    grid = itertools.product(
        [-1, 0, 1, 2, vocab_size, vocab_size + 1], [1e-300, 1e-9, 0.5, 1.0], [0.0, 0.05, 1.0], [0.0, 1e-6, 1.0, 100.0]
    )
    return [
        SamplingRow(
            SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature),
            seed=index * 77 - 1000,
            choice=index % 3,
            position=index * 5,
        )
        for index, (top_k, top_p, min_p, temperature) in enumerate(grid)
    ]


def sample_each_alone(logits: Tensor, rows: list[SamplingRow]) -> list[int]:
    tokens = []
    for index, row in enumerate(rows):
        batch = SamplingBatch.build([row], logits.shape[1])
        tokens.append(int(sample(logits[index : index + 1], batch).token_ids))
    return tokens


@pytest.mark.parametrize("vocab_size", [2, 17, 300])
def test_grid_of_settings_equals_the_plain_reference(vocab_size: int, plain: Any) -> None:
    rows = grid_rows(vocab_size)
    logits = random_logits(len(rows), vocab_size)
    result = sample(logits, SamplingBatch.build(rows, vocab_size))
    expected = [plain.sample(logits[index].tolist(), row) for index, row in enumerate(rows)]
    assert result.token_ids.tolist() == expected
    assert not bool(result.invalid.any())
    assert result.logprobs is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab_size", [1, 5, 300, 5000])
def test_whole_batch_equals_one_row_at_a_time(vocab_size: int, dtype: torch.dtype) -> None:
    rows = grid_rows(vocab_size)
    logits = random_logits(len(rows), vocab_size, dtype)  # 16-bit logits have many ties
    together = sample(logits, SamplingBatch.build(rows, vocab_size)).token_ids.tolist()
    assert together == sample_each_alone(logits, rows)


def test_16_bit_logits_sample_as_their_fp32_values() -> None:
    rows = grid_rows(300)
    logits = random_logits(len(rows), 300, torch.bfloat16)
    batch = SamplingBatch.build(rows, 300)
    assert torch.equal(sample(logits, batch).token_ids, sample(logits.float(), batch).token_ids)


def test_order_of_rows_does_not_matter() -> None:
    rows = grid_rows(50)
    logits = random_logits(len(rows), 50)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(3))
    straight = sample(logits, SamplingBatch.build(rows, 50)).token_ids
    shuffled = sample(logits[order], SamplingBatch.build([rows[i] for i in order.tolist()], 50)).token_ids
    assert torch.equal(shuffled, straight[order])


def test_result_does_not_depend_on_the_number_of_threads() -> None:
    rows = [
        SamplingRow(SamplingParams(temperature=t, top_p=p, top_k=k), seed=i)
        for i, (t, p, k) in enumerate(itertools.product([0.7, 1.5], [0.95, 1.0], [-1, 50]))
    ]
    logits = random_logits(len(rows), 40_000)
    batch = SamplingBatch.build(rows, 40_000)
    num_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = sample(logits, batch).token_ids
        torch.set_num_threads(2)
        two = sample(logits, batch).token_ids
    finally:
        torch.set_num_threads(num_threads)
    assert torch.equal(one, two)


def test_greedy_takes_the_lowest_id_of_equal_maxima() -> None:
    logits = torch.full((3, 1000), -1.0)
    logits[0, [999, 500, 7]] = 2.0
    logits[1] = 0.0
    logits[2, 998:] = 3.0
    rows = [SamplingRow(SamplingParams(temperature=0), 0), SamplingRow(SamplingParams(top_k=1), 0)]
    for row in rows:
        assert sample(logits, SamplingBatch.build([row] * 3, 1000)).token_ids.tolist() == [7, 0, 998]


def test_choices_and_positions_give_different_tokens_and_equal_keys_equal_ones() -> None:
    params = SamplingParams(seed=7)
    logits = torch.zeros(1, 10_000).expand(3, -1)
    keys = [(7, 0, 0), (7, 1, 0), (7, 0, 1)]
    batch = SamplingBatch.build([SamplingRow(params, *key) for key in keys], 10_000)
    tokens = sample(logits, batch).token_ids.tolist()
    assert len(set(tokens)) == 3
    assert tokens == sample(logits, batch).token_ids.tolist()


def test_position_moved_in_place_samples_like_a_batch_built_there() -> None:
    rows = grid_rows(100)
    logits = random_logits(len(rows), 100)
    moved = SamplingBatch.build(rows, 100)
    moved.position.add_(13)
    ahead = SamplingBatch.build([SamplingRow(r.params, r.seed, r.choice, r.position + 13) for r in rows], 100)
    assert torch.equal(sample(logits, moved).token_ids, sample(logits, ahead).token_ids)


@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 1.0, 100.0, 1e6])
def test_extreme_logits_and_temperatures_stay_finite(temperature: float) -> None:
    logits = torch.tensor([[3e38, -3e38, 0.0, 1e38], [1e-38, 0.0, -1e-38, 0.0], [-torch.inf, -3e38, -torch.inf, -3e38]])
    for top_p, top_k in itertools.product([1e-9, 0.9, 1.0], [-1, 2]):
        params = SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k)
        batch = SamplingBatch.build([SamplingRow(params, seed=s) for s in range(3)], 4)
        result = sample(logits, batch)
        assert not bool(result.invalid.any())
        assert int(result.token_ids[0]) == 0
        assert int(result.token_ids[2]) in (1, 3)
        assert bool(target_probs(logits, batch).probs.isfinite().all())


@pytest.mark.parametrize(
    "changes", [{"temperature": 0}, {}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 3, "logprobs": 2}]
)
def test_broken_row_is_reported_and_leaves_the_others_alone(changes: dict[str, Any]) -> None:
    rows = [SamplingRow(SamplingParams(**changes), seed=s) for s in range(7)]
    batch = SamplingBatch.build(rows, 600)
    healthy = random_logits(7, 600)
    expected = sample(healthy, batch).token_ids
    broken = healthy.clone()
    broken[0] = torch.nan
    broken[2, 599] = torch.nan
    broken[4, 17] = torch.inf
    broken[6] = -torch.inf
    result = sample(broken, batch)
    assert result.invalid.tolist() == [True, False, True, False, True, False, True]
    assert result.token_ids[1::2].tolist() == expected[1::2].tolist()
    assert result.token_ids[::2].tolist() == [0, 0, 0, 0]
    probs = target_probs(broken, batch)
    assert torch.equal(probs.invalid, result.invalid)
    assert bool(probs.probs[1::2].isfinite().all())
    assert bool(probs.probs[::2].isnan().all())


@pytest.mark.parametrize("changes", [{"temperature": 0}, {}, {"top_k": 3}, {"top_p": 0.9}])
def test_batch_of_broken_rows_only_is_reported(changes: dict[str, Any]) -> None:
    batch = SamplingBatch.build([SamplingRow(SamplingParams(**changes), seed=0)] * 2, 600)
    result = sample(torch.full((2, 600), torch.nan), batch)
    assert (result.invalid.tolist(), result.token_ids.tolist()) == ([True, True], [0, 0])


def test_minimum_length_forbids_stop_ids_until_it_is_reached() -> None:
    logits = torch.zeros(4, 6)
    logits[:, 2] = 10.0
    logits[:, 5] = 9.0
    rows = [
        SamplingRow(SamplingParams(temperature=0, min_tokens=3), seed=0, position=p, forbidden_stop_ids=(2, 5))
        for p in (0, 2, 3)
    ]
    rows.append(SamplingRow(SamplingParams(temperature=0), seed=0, forbidden_stop_ids=(2,)))
    result = sample(logits, SamplingBatch.build(rows, 6))
    assert result.token_ids.tolist() == [0, 0, 2, 2]
    assert bool((logits[:, 2] == 10.0).all()), "the caller's logits were changed"


def test_minimum_length_counts_the_rows_of_drafts() -> None:
    row = SamplingRow(SamplingParams(temperature=0, min_tokens=2), seed=0, position=0, forbidden_stop_ids=(4,))
    batch = SamplingBatch.build([row], 6).select([0, 0, 0, 0], [0, 1, 2, 3])
    logits = torch.zeros(4, 6)
    logits[:, 4] = 1.0
    assert sample(logits, batch).token_ids.tolist() == [0, 0, 4, 4]


def test_row_with_every_token_forbidden_is_invalid() -> None:
    row = SamplingRow(SamplingParams(min_tokens=2), seed=0, forbidden_stop_ids=(0, 1, 2))
    assert sample(torch.zeros(1, 3), SamplingBatch.build([row], 3)).invalid.tolist() == [True]


def test_allowed_tokens_restrict_their_rows_only() -> None:
    params = [SamplingParams(temperature=0), SamplingParams(), SamplingParams(top_k=5), SamplingParams()]
    rows = [SamplingRow(p, seed) for seed, p in enumerate(params)]
    logits = random_logits(4, 500)
    untouched = logits.clone()
    mask = torch.zeros(3, 500, dtype=torch.bool)
    mask[:, 100:103] = True
    batch = SamplingBatch.build(rows, 500)
    result = sample(logits, batch, AllowedTokens(torch.tensor([0, 1, 2]), mask))
    assert all(100 <= token < 103 for token in result.token_ids[:3].tolist())
    assert int(result.token_ids[3]) == int(sample(logits, batch).token_ids[3])
    assert torch.equal(logits, untouched)


def test_no_rows_give_no_tokens() -> None:
    batch = SamplingBatch.build([], 10)
    assert sample(torch.zeros(0, 10), batch).token_ids.shape == (0,)
    assert target_probs(torch.zeros(0, 10), batch).probs.shape == (0, 10)


def test_shape_that_does_not_fit_is_our_bug() -> None:
    with pytest.raises(AssertionError, match=r"\(1, 9\)"):
        sample(torch.zeros(1, 9), SamplingBatch.build([SamplingRow(SamplingParams(), 0)], 10))


SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 2.0},
    {"top_k": 4},
    {"top_p": 0.8},
    {"min_p": 0.3},
    {"temperature": 1.3, "top_k": 6, "top_p": 0.9, "min_p": 0.05},
]


@pytest.mark.parametrize("changes", SETTINGS)
def test_tokens_are_distributed_as_target_probs(
    changes: dict[str, Any], assert_distributed: Callable[[Tensor, Tensor], None]
) -> None:
    num_trials = 100_000
    logits = torch.linspace(-1.0, 1.5, 16).roll(5).unsqueeze(0)
    batch = SamplingBatch.build([SamplingRow(SamplingParams(**changes), seed=11)], 16)
    probs = target_probs(logits, batch).probs[0]
    trials = batch.select([0] * num_trials, list(range(num_trials)))
    tokens = sample(logits.expand(num_trials, -1), trials).token_ids
    kept = probs > 0
    assert bool(kept[tokens].all())
    # One cell a token; a quarter of them is dropped together into cell 0 where filters left fewer than 16 tokens.
    cells = torch.zeros(16, dtype=torch.int64)
    cells[kept] = torch.arange(int(kept.sum())) % 4 if int(kept.sum()) < 16 else torch.arange(16)
    num_cells = int(cells.max()) + 1
    assert_distributed(cells[tokens], torch.zeros(num_cells).scatter_add(0, cells, probs))


@pytest.mark.parametrize("vocab_size", [16, 700])
def test_target_probs_are_the_softmax_over_the_kept_tokens(vocab_size: int, plain: Any) -> None:
    rows = grid_rows(vocab_size)
    logits = random_logits(len(rows), vocab_size)
    probs = target_probs(logits, SamplingBatch.build(rows, vocab_size)).probs
    for index, row in enumerate(rows):
        if row.params.is_greedy:
            expected = torch.zeros(vocab_size).index_fill(0, logits[index].argmax(), 1.0)
        else:
            kept = plain.kept(logits[index].tolist(), row)
            expected = torch.full((vocab_size,), -torch.inf, dtype=torch.float64)
            expected[list(kept)] = torch.tensor(list(kept.values()), dtype=torch.float64)
            expected = expected.softmax(dim=0).float()
        torch.testing.assert_close(probs[index], expected, rtol=2e-5, atol=1e-7)
