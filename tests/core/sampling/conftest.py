"""A chi-square test without a statistics package, and a sampler in plain Python to compare with."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tokenloom.sampling import SamplingRow

CHI_SQUARE_999 = {3: 16.266, 7: 24.322, 15: 37.697, 63: 103.442}
"""0.999 quantiles of the chi-square distribution by degrees of freedom."""

WORD = 0xFFFFFFFF


@pytest.fixture
def assert_distributed() -> Callable[[torch.Tensor, torch.Tensor], None]:
    """assert_distributed(outcomes int64 [n], probs [cells]): the outcomes may well come from probs."""

    def check(outcomes: torch.Tensor, probs: torch.Tensor) -> None:
        expected = probs.double() * len(outcomes)
        assert float(expected.min()) >= 5.0, "too few outcomes expected in a cell for a chi-square test"
        counts = torch.bincount(outcomes, minlength=len(probs)).double()
        statistic = float(((counts - expected) ** 2 / expected).sum())
        limit = CHI_SQUARE_999[len(probs) - 1]
        assert statistic < limit, f"chi-square {statistic:.1f} exceeds {limit} at {len(probs) - 1} degrees of freedom"

    return check


def plain_philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 on Python integers, straight from the paper."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) & WORD, (k[1] + 0xBB67AE85) & WORD]
    return c


def plain_gumbel(seed: int, choice: int, position: int, purpose: int, token_id: int) -> float:
    """The documented noise of one token, in double precision."""
    counter = [choice, position, purpose, token_id // 4]
    word = plain_philox(counter, [seed & WORD, (seed >> 32) & WORD])[token_id % 4]
    u = min((2 * word + 1) * 2.0**-33, 1.0 - 2.0**-24)
    return -math.log(-math.log1p(-u))


def plain_kept(logits: list[float], row: SamplingRow) -> dict[int, float]:
    """token id -> scaled score of the tokens that temperature, min_p, top_k and top_p leave, in double precision."""
    params = row.params
    best = max(logits)
    scores = [(logit - best) / params.temperature for logit in logits]
    ranked = sorted(range(len(scores)), key=lambda token_id: (-scores[token_id], token_id))
    ranked = [t for t in ranked if params.min_p == 0.0 or scores[t] >= math.log(params.min_p)]
    ranked = ranked[: params.top_k] if params.top_k > 0 else ranked
    total = sum(math.exp(scores[t]) for t in ranked)
    kept: dict[int, float] = {}
    mass = 0.0
    for token_id in ranked:
        if kept and params.top_p < 1.0 and mass >= params.top_p * total:
            break
        kept[token_id] = scores[token_id]
        mass += math.exp(scores[token_id])
    return kept


def plain_sample(logits: list[float], row: SamplingRow) -> int:
    """One token by the documented rules, one number at a time."""
    if row.params.is_greedy:
        return logits.index(max(logits))
    perturbed = {
        token_id: score + plain_gumbel(row.seed, row.choice, row.position, 0, token_id)
        for token_id, score in plain_kept(logits, row).items()
    }
    return max(sorted(perturbed), key=lambda token_id: perturbed[token_id])


class PlainSampler:
    """The functions above, for tests (a conftest cannot be imported from them)."""

    philox = staticmethod(plain_philox)
    gumbel = staticmethod(plain_gumbel)
    kept = staticmethod(plain_kept)
    sample = staticmethod(plain_sample)


@pytest.fixture(scope="session")
def plain() -> PlainSampler:
    return PlainSampler()
