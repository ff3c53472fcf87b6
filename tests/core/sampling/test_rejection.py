"""Classical rejection sampling: acceptance, greedy rows, ragged batches, broken input. See also test_distributions."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tokenloom.sampling import SamplingBatch, SamplingRow, target_probs, verify_rejection
from tokenloom.sampling.noise import Purpose, uniform_noise
from tokenloom.sampling_params import SamplingParams

VOCAB = 8
TRIALS = 50_000


def random_logits(seed: int) -> Tensor:
    """[VOCAB, VOCAB]: the logits after each token, mild enough that every pair of tokens is seen."""
    return torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed)) * 0.7


def keys(num_requests: int, num_rows_each: int, seed: int = 9) -> SamplingBatch:
    """Rows of independent requests: request i uses the positions from 100 i on."""
    row = SamplingRow(SamplingParams(), seed=seed)
    offsets = [100 * request + i for request in range(num_requests) for i in range(num_rows_each)]
    return SamplingBatch.build([row], VOCAB).select([0] * len(offsets), offsets)


def draw(probs: Tensor, seed: int) -> Tensor:
    """One token a row, by torch's own generator and the inverse of the cumulated probabilities."""
    u = torch.rand(len(probs), 1, generator=torch.Generator().manual_seed(seed))
    return (probs.cumsum(dim=-1) < u).sum(dim=-1).clamp(max=probs.shape[1] - 1)


def joint(target: Tensor) -> Tensor:
    return (target[0].unsqueeze(1) * target).flatten()


def test_equal_distributions_accept_every_draft_and_add_a_bonus(
    assert_distributed: Callable[[Tensor, Tensor], None],
) -> None:
    target = random_logits(1).softmax(dim=-1)
    drafts = draw(target[torch.zeros(TRIALS, dtype=torch.int64)], seed=1)
    rows = torch.stack([torch.zeros_like(drafts), drafts], dim=1).flatten()
    cu_num_rows = torch.arange(TRIALS + 1) * 2
    result = verify_rejection(target[rows], drafts, target[0].expand(TRIALS, -1), cu_num_rows, keys(TRIALS, 2))
    assert result.num_accepted_tokens.tolist() == [1] * TRIALS
    pairs = result.token_ids.view(TRIALS, 2)
    assert torch.equal(pairs[:, 0], drafts)
    assert_distributed(pairs[:, 0] * VOCAB + pairs[:, 1], joint(target))


def test_acceptance_is_the_overlap_of_the_distributions() -> None:
    target, draft = random_logits(1).softmax(dim=-1)[0], random_logits(2).softmax(dim=-1)[0]
    drafts = draw(draft.expand(TRIALS, -1), seed=1)
    cu_num_rows = torch.arange(TRIALS + 1) * 2
    result = verify_rejection(
        target.expand(2 * TRIALS, -1), drafts, draft.expand(TRIALS, -1), cu_num_rows, keys(TRIALS, 2)
    )
    overlap = float(torch.minimum(target, draft).sum())
    assert abs(float(result.num_accepted_tokens.double().mean()) - overlap) < 0.01


def test_coin_is_the_noise_of_the_drafts_own_position() -> None:
    row = SamplingRow(SamplingParams(), seed=3, position=6)
    batch = SamplingBatch.build([row], VOCAB).select([0, 0], [0, 1])
    coin = float(uniform_noise(*batch.noise_keys(torch.tensor([0])), Purpose.ACCEPT))
    for p, num_accepted in [(coin * 1.001, 1), (coin * 0.999, 0)]:
        target = torch.full((2, VOCAB), (1 - p) / (VOCAB - 1))
        target[:, 5] = p
        result = verify_rejection(target, torch.tensor([5]), None, torch.tensor([0, 2]), batch)
        assert result.num_accepted_tokens.tolist() == [num_accepted]


def test_greedy_target_accepts_its_argmax_only() -> None:
    logits = random_logits(1)
    batch = SamplingBatch.build([SamplingRow(SamplingParams(temperature=0), seed=0)] * 5, VOCAB)
    best = logits[:5].argmax(dim=-1)
    wrong = (best[2] + 1) % VOCAB
    drafts = torch.stack([best[0], best[1], wrong, best[3]])
    draft_probs = torch.full((4, VOCAB), 1 / VOCAB)
    for probs in (None, draft_probs):
        result = verify_rejection(target_probs(logits[:5], batch).probs, drafts, probs, torch.tensor([0, 5]), batch)
        assert result.num_accepted_tokens.tolist() == [2]
        assert result.token_ids[result.is_emitted].tolist() == best[:3].tolist()


def test_a_request_alone_equals_the_request_in_a_ragged_batch() -> None:
    counts = [1, 4, 2, 1, 6]
    starts = list(itertools.accumulate(counts, initial=0))
    num_rows, num_drafts = sum(counts), sum(counts) - len(counts)
    generator = torch.Generator().manual_seed(8)
    target = torch.rand(num_rows, VOCAB, generator=generator).softmax(dim=-1)
    draft = torch.rand(num_drafts, VOCAB, generator=generator).softmax(dim=-1)
    drafts = draw(draft, seed=3)
    requests = [SamplingRow(SamplingParams(), seed=seed) for seed in range(len(counts))]
    owner = [request for request, count in enumerate(counts) for _ in range(count)]
    ahead = [i for count in counts for i in range(count)]
    batch = SamplingBatch.build(requests, VOCAB).select(owner, ahead)
    for probs in (draft, None):
        together = verify_rejection(target, drafts, probs, torch.tensor(starts), batch)
        for request, count in enumerate(counts):
            rows = slice(starts[request], starts[request] + count)
            mine = slice(starts[request] - request, starts[request] - request + count - 1)
            alone = verify_rejection(
                target[rows],
                drafts[mine],
                None if probs is None else probs[mine],
                torch.tensor([0, count]),
                batch.select(list(range(num_rows))[rows], [0] * count),
            )
            assert torch.equal(alone.is_emitted, together.is_emitted[rows])
            assert torch.equal(alone.token_ids, together.token_ids[rows])
            assert int(alone.num_accepted_tokens) == int(together.num_accepted_tokens[request])


def test_draft_that_its_own_distribution_excludes_is_refused() -> None:
    target = torch.full((2, VOCAB), 1 / VOCAB)
    draft_probs = torch.zeros(1, VOCAB)
    draft_probs[0, 3] = 1.0
    result = verify_rejection(target, torch.tensor([5]), draft_probs, torch.tensor([0, 2]), keys(1, 2))
    assert result.num_accepted_tokens.tolist() == [0]
    assert int(result.token_ids[0]) != 3


@pytest.mark.parametrize("claim", [1e-45, -1.0, float("nan"), 0.0, float("inf")])
def test_whatever_a_drafter_claims_no_excluded_token_is_emitted(claim: float) -> None:
    target = torch.zeros(2 * 500, VOCAB)
    target[:, 2:4] = 0.5
    draft_probs = torch.full((500, VOCAB), claim)
    result = verify_rejection(target, torch.full((500,), 5), draft_probs, torch.arange(501) * 2, keys(500, 2))
    assert int(result.num_accepted_tokens.sum()) == 0
    assert set(result.token_ids[result.is_emitted].tolist()) == {2, 3}


def test_draft_that_the_target_excludes_is_refused_and_never_emitted() -> None:
    target = torch.full((2 * 1000, VOCAB), 1 / (VOCAB - 1))
    target[:, 5] = 0.0
    drafts = torch.full((1000,), 5)
    result = verify_rejection(target, drafts, None, torch.arange(1001) * 2, keys(1000, 2))
    assert int(result.num_accepted_tokens.sum()) == 0
    assert 5 not in result.token_ids[result.is_emitted].tolist()


def test_refusal_of_equal_distributions_up_to_rounding_still_yields_a_likely_token() -> None:
    target = torch.zeros(2, VOCAB)
    target[:, 2:4] = 0.5
    draft_probs = target[:1] * 1.5  # larger everywhere: nothing is left of p - q
    tokens = set()
    for seed in range(40):
        batch = keys(1, 2, seed=seed)
        result = verify_rejection(target, torch.tensor([2]), draft_probs, torch.tensor([0, 2]), batch)
        tokens.add(int(result.token_ids[0]))
        assert int(result.token_ids[int(result.last_row)]) in (2, 3)
    assert tokens == {2, 3}


def test_row_without_a_distribution_accepts_nothing_and_harms_no_other() -> None:
    target = torch.full((4, VOCAB), 1 / VOCAB)
    batch = keys(2, 2)
    healthy = verify_rejection(target, torch.tensor([1, 1]), None, torch.tensor([0, 2, 4]), batch)
    target[0] = torch.nan
    result = verify_rejection(target, torch.tensor([1, 1]), None, torch.tensor([0, 2, 4]), batch)
    assert int(result.num_accepted_tokens[0]) == 0
    assert 0 <= int(result.token_ids[0]) < VOCAB
    assert torch.equal(result.token_ids[2:], healthy.token_ids[2:])
