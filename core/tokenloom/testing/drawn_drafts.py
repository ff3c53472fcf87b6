"""Many proposals for one text under different seeds: whether drafts are drawn from the probabilities they claim."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch

from tokenloom.interfaces.spec_decode import Drafter, DrafterContext, DraftSampling, Proposal
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.draft_driver import Asked, DraftDriver

__all__ = [
    "Draw",
    "check_distributions",
    "check_frequencies",
    "check_independence",
    "chi_square_limit",
    "draw_many",
    "draw_related",
]

_MAX_DRAFTS = 2
_TEXTS = ((3, 1, 4, 1, 5, 9, 2, 6), (7, 2, 7, 2, 7, 2, 7))
_PARAMS = (SamplingParams(temperature=0.8), SamplingParams(temperature=1.5, top_k=8, top_p=0.95))
_NEXT_TOKEN = 2
"""What the target says between two steps, whatever was drafted."""
_NUM_CLASSES = 4


@final
@dataclass(frozen=True, slots=True)
class Draw:
    """Which draw a proposal is: of a request with this seed and choice, in this step after the first."""

    seed: int
    choice: int = 0
    step: int = 0


def draw_many(build: Callable[[], Drafter], context: DrafterContext, count: int) -> list[list[Proposal]]:
    """Per text, the proposals with probabilities that a drafter makes for requests of different seeds.

    Args:
        build: makes a new drafter for `context`.
        context: says how many requests fit into one call.
        count: requests for each text, about.

    Returns:
        A list for each text that got any; none if the drafter never returns probs.
    """
    return [list(drawn.values()) for drawn in _draw(build, context, count, num_choices=1, num_steps=1)]


def draw_related(build: Callable[[], Drafter], context: DrafterContext, count: int) -> list[dict[Draw, Proposal]]:
    """As `draw_many`, for two choices of each seed in two steps; the text grows by the same token for all of them."""
    return _draw(build, context, count, num_choices=2, num_steps=2)


def _draw(
    build: Callable[[], Drafter], context: DrafterContext, count: int, *, num_choices: int, num_steps: int
) -> list[dict[Draw, Proposal]]:
    found: list[dict[Draw, Proposal]] = []
    for text, params in zip(_TEXTS, _PARAMS, strict=True):
        driver = DraftDriver(build(), context)
        drawn: dict[Draw, Proposal] = {}
        for start in range(0, count, context.max_num_seqs // num_choices):
            seeds = range(start, start + context.max_num_seqs // num_choices)
            keys = [(seed, choice) for seed in seeds for choice in range(num_choices)]
            for step in range(num_steps):
                tokens = (*text, *[_NEXT_TOKEN] * step)
                asked = [_asked(tokens, params, *key) for key in keys]
                for key, proposal in zip(keys, driver.propose(asked), strict=True):
                    if proposal.probs is not None:
                        drawn[Draw(*key, step)] = proposal
            driver.forget(*(f"r{seed}_{choice}" for seed, choice in keys))
            if start >= 64 and not drawn:
                break
        if drawn:
            found.append(drawn)
    return found


def _asked(tokens: tuple[int, ...], params: SamplingParams, seed: int, choice: int) -> Asked:
    sampling = DraftSampling(params, seed, choice, len(tokens) - 1)
    return Asked(f"r{seed}_{choice}", tokens, 1, _MAX_DRAFTS, True, sampling)


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
            tokens, probs = _at(rows, depth)
            _check_counts(torch.bincount(tokens, minlength=probs.shape[1]).double(), probs.sum(dim=0), depth)


def check_independence(drawn: Sequence[Mapping[Draw, Proposal]]) -> None:
    """Asserts that a draw says nothing of the one behind it, of the next step's, or of another choice's (chi-square).

    Counted is how often a draft of one class of tokens goes with one of another class. Expected is what the second
    one's probabilities add up to, over all pairs with such a first draft: these may depend on the first one.
    """
    for draws in drawn:
        # One pair for each seed: were there more, a fault of one kind would show as one of every kind.
        firsts = {key: proposal for key, proposal in draws.items() if key == Draw(key.seed)}
        _check_pairs([(first, first) for first in firsts.values()], 1, "at depths 0 and 1 of one proposal")
        steps = [(first, draws.get(replace(key, step=1))) for key, first in firsts.items()]
        _check_pairs(steps, 0, "in two steps of one request")
        choices = [(first, draws.get(replace(key, choice=1))) for key, first in firsts.items()]
        _check_pairs(choices, 0, "for two choices of one seed")


def _check_pairs(pairs: Sequence[tuple[Proposal, Proposal | None]], depth: int, where: str) -> None:
    """Compares the first draft of each pair's first proposal with the draft at `depth` of its second one."""
    both = [(a, b) for a, b in pairs if b is not None and a.token_ids and len(b.token_ids) > depth]
    if not both:
        return
    first, first_probs = _at([a for a, _ in both], 0)
    second, second_probs = _at([b for _, b in both], depth)
    classes = _classes((first_probs + second_probs).sum(dim=0))  # [V]
    cells = torch.stack([classes[first], classes[second]])
    counts = torch.zeros(_NUM_CLASSES, _NUM_CLASSES, dtype=torch.float64)
    counts.index_put_(tuple(cells), torch.ones(len(both), dtype=torch.float64), accumulate=True)
    of_second = torch.zeros(len(both), _NUM_CLASSES, dtype=torch.float64).index_add_(1, classes, second_probs)
    expected = torch.zeros_like(counts).index_add_(0, cells[0], of_second)
    is_common = expected >= 10
    statistic = float(((counts - expected).square() / expected)[is_common].sum())
    limit = chi_square_limit(max(1, int(is_common.sum())))
    worst = int((torch.where(is_common, counts - expected, 0).abs() / (expected + 1).sqrt()).argmax())
    one, other = divmod(worst, _NUM_CLASSES)
    assert statistic < limit, (
        f"two drafts {where} are not independent: chi-square {statistic:.1f} exceeds {limit:.1f}; one of "
        f"{_examples(classes, one)} went {int(counts[one, other])} times with one of {_examples(classes, other)}, "
        f"by their probabilities {float(expected[one, other]):.1f} times"
    )


def _classes(weights: torch.Tensor) -> torch.Tensor:
    """int64 [V]: the class of each token, so that the classes have about the same weight, fp64 [V]."""
    classes, sums = torch.zeros(len(weights), dtype=torch.int64), [0.0] * _NUM_CLASSES
    for token in weights.argsort(descending=True, stable=True).tolist():
        lightest = sums.index(min(sums))
        classes[token] = lightest
        sums[lightest] += float(weights[token])
    return classes


def _examples(classes: torch.Tensor, number: int) -> str:
    tokens = (classes == number).nonzero().flatten().tolist()
    return f"the tokens {', '.join(map(str, tokens[:4]))}{', ...' if len(tokens) > 4 else ''}"


def _at(proposals: Sequence[Proposal], depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The drafts at a depth, int64 [n], and their probabilities, fp64 [n, V]."""
    tokens = torch.tensor([proposal.token_ids[depth] for proposal in proposals])
    return tokens, torch.stack([p.probs[depth] for p in proposals if p.probs is not None]).double()


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
