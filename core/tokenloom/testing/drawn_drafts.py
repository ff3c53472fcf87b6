"""Many proposals for one text under different seeds: whether drafts are drawn from the probabilities they claim."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from tokenloom.interfaces.spec_decode import Drafter, DrafterContext, DraftSampling, Proposal
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.draft_driver import Asked, DraftDriver

__all__ = ["check_distributions", "check_frequencies", "chi_square_limit", "draw_many"]

_MAX_DRAFTS = 2
_TEXTS = ((3, 1, 4, 1, 5, 9, 2, 6), (7, 2, 7, 2, 7, 2, 7))
_PARAMS = (SamplingParams(temperature=0.8), SamplingParams(temperature=1.5, top_k=8, top_p=0.95))


def draw_many(build: Callable[[], Drafter], context: DrafterContext, count: int) -> list[list[Proposal]]:
    """Per text, the proposals with probabilities that a drafter makes for requests of different seeds.

    Args:
        build: makes a new drafter for `context`.
        context: says how many requests fit into one call.
        count: requests for each text, about.

    Returns:
        A list for each text that got any; none if the drafter never returns probs.
    """
    found: list[list[Proposal]] = []
    for text, params in zip(_TEXTS, _PARAMS, strict=True):
        driver = DraftDriver(build(), context)
        drawn: list[Proposal] = []
        for start in range(0, count, context.max_num_seqs):
            asked = [
                Asked(f"r{seed}", text, 1, _MAX_DRAFTS, True, DraftSampling(params, seed, 0, len(text) - 1))
                for seed in range(start, start + context.max_num_seqs)
            ]
            drawn += [proposal for proposal in driver.propose(asked) if proposal.probs is not None]
            driver.forget(*(request.request_id for request in asked))
            if start >= 64 and not drawn:
                break
        if drawn:
            found.append(drawn)
    return found


def check_distributions(drawn: Sequence[Sequence[Proposal]]) -> None:
    """Asserts that all probabilities are distributions, and that no draft is impossible under its own."""
    for proposal in (proposal for proposals in drawn for proposal in proposals):
        probs = proposal.probs
        assert probs is not None, "draw_many() returns proposals with probs"
        assert bool((probs >= 0).all()), f"negative or NaN: {float(probs.min())}"
        sums = probs.double().sum(dim=-1)
        assert bool(((sums - 1).abs() < 1e-4).all()), f"rows of probs sum to {sums.tolist()}"
        own = probs[torch.arange(len(probs)), torch.tensor(proposal.token_ids, dtype=torch.int64)]
        assert bool((own > 0).all()), f"drafts {proposal.token_ids} have probabilities {own.tolist()}"


def check_frequencies(drawn: Sequence[Sequence[Proposal]]) -> None:
    """Asserts, depth by depth, that drafts occur as often as their probabilities add up to (chi-square)."""
    for proposals in drawn:
        for depth in range(max(len(proposal.token_ids) for proposal in proposals)):
            rows = [p for p in proposals if len(p.token_ids) > depth]
            expected = torch.stack([p.probs[depth] for p in rows if p.probs is not None]).double().sum(dim=0)  # [V]
            drafts = torch.tensor([p.token_ids[depth] for p in rows])
            _check_counts(torch.bincount(drafts, minlength=len(expected)).double(), expected, depth)


def _check_counts(counts: torch.Tensor, expected: torch.Tensor, depth: int) -> None:
    """Compares counts with expected ones, both fp64 [V]; tokens expected fewer than ten times share a cell."""
    is_rare = expected < 10
    cells = list(zip(counts[~is_rare].tolist(), expected[~is_rare].tolist(), strict=True))
    if float(expected[is_rare].sum()) > 1:
        cells.append((float(counts[is_rare].sum()), float(expected[is_rare].sum())))
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    limit = chi_square_limit(max(1, len(cells) - 1))
    worst = int(((counts - expected).abs() / (expected + 1).sqrt()).argmax())
    assert statistic < limit, (
        f"chi-square {statistic:.1f} exceeds {limit:.1f} at depth {depth}: token {worst} was drafted "
        f"{int(counts[worst])} times, by its probabilities {float(expected[worst]):.1f}"
    )


def chi_square_limit(num_free: int) -> float:
    """About the 0.9999 quantile of the chi-square distribution with `num_free` degrees of freedom.

    Source: Wilson and Hilferty, "The distribution of chi-square" (1931).
    """
    part = 2.0 / (9.0 * num_free)
    return num_free * (1.0 - part + 3.719 * math.sqrt(part)) ** 3
