"""Sampling and verification in Triton, run by its interpreter: token for token what the torch versions choose."""

from __future__ import annotations

import random
from itertools import accumulate

import pytest
import torch

from tokenloom.ops.sampling_table import TORCH_SAMPLING, SamplingOps, build_sampling_ops
from tokenloom.sampling import SamplingBatch, SamplingRow, Verification
from tokenloom.sampling_params import SamplingParams


@pytest.fixture(scope="module")
def ops() -> SamplingOps:
    return build_sampling_ops("triton")


def _assert_equal(ops: SamplingOps, logits: torch.Tensor, rows: list[SamplingRow]) -> torch.Tensor:
    batch = SamplingBatch.build(rows, logits.shape[1])
    kept = logits.clone()
    token_ids, invalid = ops.choose_tokens(logits, batch)
    expected, expected_invalid = TORCH_SAMPLING.choose_tokens(logits, batch)
    assert invalid.tolist() == expected_invalid.tolist()
    assert token_ids.tolist() == expected.tolist()
    torch.testing.assert_close(logits, kept, rtol=0, atol=0, equal_nan=True)
    return token_ids


@pytest.mark.parametrize("vocab_size", [1, 5, 333, 4096, 9001])
def test_tokens_of_mixed_rows_are_those_of_torch(ops: SamplingOps, vocab_size: int) -> None:
    shuffle, generator = random.Random(vocab_size), torch.Generator().manual_seed(vocab_size)
    rows = [
        SamplingRow(
            SamplingParams(
                temperature=shuffle.choice([0.0, 0.3, 1.0, 1.7]),
                top_k=shuffle.choice([0, 1, 5, 50, 10_000]),
                top_p=shuffle.choice([1.0, 0.9, 0.3, 1e-30]),
                min_p=shuffle.choice([0.0, 0.05]),
            ),
            seed=shuffle.getrandbits(64) - 2**63,
            choice=shuffle.randrange(3),
            position=shuffle.randrange(2**20),
        )
        for _ in range(20)
    ]
    logits = 3 * torch.randn(20, vocab_size + 7, generator=generator)[:, :vocab_size]  # strided rows
    logits[::3] = logits[::3].round()  # many equal ones
    logits[1, vocab_size // 2 :] = float("-inf")
    tokens = _assert_equal(ops, logits, rows)
    assert vocab_size < 5 or len(set(tokens.tolist())) > 3


def test_temperatures_and_positions_draw_what_torch_draws(ops: SamplingOps) -> None:
    """The whole range of the noise: 60 rows over 4,100 equal logits are its greatest numbers."""
    rows = [SamplingRow(SamplingParams(temperature=1.0), seed=7, position=position) for position in range(60)]
    tokens = _assert_equal(ops, torch.zeros(60, 4100), rows)
    assert len(set(tokens.tolist())) > 50


def test_limits_among_equal_scores_keep_the_lowest_ids(ops: SamplingOps) -> None:
    """Scores 0 0 0, -1 -1 -1, -30 ...: limits fall between equals, on the border of a group, and beyond all."""
    logits = torch.tensor([-30.0, 0.0, -1.0, float("-inf"), 0.0, -1.0, 0.0, -30.0, -1.0, -200.0])
    limits = [
        SamplingParams(temperature=2.0, top_k=top_k, top_p=top_p)
        for top_k in (0, 1, 2, 3, 5, 6, 9, 50)
        for top_p in (1.0, 0.999, 0.7, 0.5, 0.2, 1e-30)
    ]
    rows = [SamplingRow(params, seed=seed) for seed, params in enumerate(limits)]
    tokens = _assert_equal(ops, logits.repeat(len(rows), 1), rows)
    narrow = [token for token, params in zip(tokens.tolist(), limits) if params.top_k == 1 or params.top_p < 0.1]
    assert set(narrow) == {1}
    assert set(tokens.tolist()) > {1, 2, 4}


@pytest.mark.parametrize("kind", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}])
def test_rows_without_a_distribution_are_invalid(ops: SamplingOps, kind: dict[str, float]) -> None:
    logits = torch.randn(5, 50, generator=torch.Generator().manual_seed(0))
    logits[0, 49] = float("nan")
    logits[1, 3] = float("inf")
    logits[2] = float("-inf")
    logits[3, 1:] = float("-inf")
    rows = [SamplingRow(SamplingParams(**kind), seed=3)] * 5  # type: ignore[arg-type]
    assert _assert_equal(ops, logits, rows).tolist()[:4] == [0, 0, 0, 0]


@pytest.mark.parametrize("temperature", [1e-30, 1e-3, 1e6])
def test_extreme_temperatures_overflow_nothing(ops: SamplingOps, temperature: float) -> None:
    logits = 5 * torch.randn(6, 100, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(temperature=temperature), SamplingParams(temperature=temperature, top_k=7, top_p=0.6)]
    _assert_equal(ops, logits, [SamplingRow(params[index % 2], seed=index) for index in range(6)])


def _assert_same(found: Verification, expected: Verification) -> None:
    assert torch.equal(found.token_ids, expected.token_ids)
    assert found.is_emitted.tolist() == expected.is_emitted.tolist()
    assert found.num_accepted_tokens.tolist() == expected.num_accepted_tokens.tolist()
    assert found.last_row.tolist() == expected.last_row.tolist()


@pytest.mark.parametrize("counts", [[1], [4], [1, 1, 1], [3, 1, 9, 2, 1, 5], [70, 1, 3]])
@pytest.mark.parametrize("has_trees", [False, True])
def test_verification_accepts_what_torch_accepts(ops: SamplingOps, counts: list[int], has_trees: bool) -> None:
    accepted = 0
    for seed in range(8):
        shuffle = random.Random(seed)
        cu_num_rows = torch.tensor([0, *accumulate(counts)])
        sampled = torch.tensor([shuffle.randrange(3) for _ in range(sum(counts))])
        drafts = torch.tensor([shuffle.choice([0, 1, 2]) for count in counts for _ in range(count - 1)]).long()
        if has_trees:
            parents = [shuffle.randrange(-1, node) for count in counts for node in range(count - 1)]
            trees = torch.tensor(parents).long()
            found = ops.verify_tree(sampled, drafts, trees, cu_num_rows)
            _assert_same(found, TORCH_SAMPLING.verify_tree(sampled, drafts, trees, cu_num_rows))
        else:
            for request, (first, count) in enumerate(zip(cu_num_rows.tolist(), counts)):
                num_right = shuffle.randrange(count)
                drafts[first - request : first - request + num_right] = sampled[first : first + num_right]
            found = ops.verify_chain(sampled, drafts, cu_num_rows)
            _assert_same(found, TORCH_SAMPLING.verify_chain(sampled, drafts, cu_num_rows))
        accepted += int(found.num_accepted_tokens.sum())
    assert (accepted > 0) == (max(counts) > 1)
