"""Chooses one token for each logits row: greedy rows by argmax, all others by Gumbel-max with their position's noise.

Order of operations, in fp32: everything in `processing`, then temperature, min_p, top_k, top_p, then
argmax(scores + Gumbel noise). Each row's token is the same whatever other rows stand in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from tokenloom.sampling.batch import SamplingBatch
from tokenloom.sampling.constraint import AllowedTokens
from tokenloom.sampling.filtering import (
    Candidates,
    Limits,
    Rank,
    TotalMass,
    apply_min_p,
    rank_tokens,
    ranked_candidates,
    total_mass,
)
from tokenloom.sampling.logprobs import SampleLogprobs, raw_logprobs
from tokenloom.sampling.noise import Purpose, gumbel_noise, gumbel_noise_for
from tokenloom.sampling.processing import process_logits
from tokenloom.sampling.row_max import RowMax, row_max

__all__ = [
    "TORCH_ROWS",
    "RowOperations",
    "SampleResult",
    "TargetProbs",
    "choice_probs",
    "choose_tokens",
    "draw_tokens",
    "sample",
    "target_probs",
]

_CHUNK_LOGITS = 1 << 19
"""On a CPU, rows are ranked in chunks of about this many logits: temporaries that stay in cache halve the time."""


@final
@dataclass(frozen=True, slots=True)
class SampleResult:
    """What was sampled from R rows.

    Attributes:
        token_ids: int64 [R]; 0 where the row is invalid.
        invalid: bool [R], rows with a NaN, a +inf or no finite logit at all: the engine fails these requests alone.
        logprobs: of the rows that asked, or None.
    """

    token_ids: Tensor
    invalid: Tensor
    logprobs: SampleLogprobs | None


@final
@dataclass(frozen=True, slots=True)
class TargetProbs:
    """The distributions that `sample` draws from: probs fp32 [R, V] (NaN in invalid rows), and invalid bool [R]."""

    probs: Tensor
    invalid: Tensor


def sample(logits: Tensor, batch: SamplingBatch, allowed: AllowedTokens | None = None) -> SampleResult:
    """Samples one token for every row.

    Args:
        logits: [R, V] of any float dtype; not changed.
        batch: settings of the R rows.
        allowed: masks of the rows under a logits constraint.

    Returns:
        Tokens on the device of the logits. Without ties a greedy row takes the greatest logit; among equal logits (or,
        with noise, equal sums) the lowest token id.
    """
    token_ids, invalid = choose_tokens(process_logits(logits, batch, allowed), batch)
    return SampleResult(token_ids, invalid, raw_logprobs(logits, token_ids, batch.groups))


def draw_tokens(processed: Tensor, tops: Tensor, batch: SamplingBatch) -> Tensor:
    """Draws the tokens of the batch's plain rows, over the whole vocabulary.

    Args:
        processed: fp32 [R, V].
        tops: fp32 [R], the greatest of each row.
        batch: of the R rows.

    Returns:
        int64 [plain rows]: argmax of score + noise, the lowest id of equals; any id in invalid rows.
    """
    noise = gumbel_noise(*batch.noise_keys(batch.groups.plain_rows), Purpose.SAMPLE, batch.vocab_size)
    return _plain_scores(processed, tops, batch).add_(noise).argmax(dim=-1)


@final
@dataclass(frozen=True, slots=True)
class RowOperations:
    """One implementation of what costs time in `choose_tokens`; those in C++ round exp() and log() a little otherwise.

    Attributes:
        find_max: see `row_max`.
        rank: see `filtering.rank_tokens`.
        sum_mass: see `filtering.total_mass`.
        draw: see `draw_tokens`.
    """

    find_max: Callable[[Tensor], RowMax]
    rank: Rank
    sum_mass: TotalMass
    draw: Callable[[Tensor, Tensor, SamplingBatch], Tensor]


TORCH_ROWS = RowOperations(row_max, rank_tokens, total_mass, draw_tokens)
"""For any device; what the others are tested against."""


def choose_tokens(
    processed: Tensor, batch: SamplingBatch, operations: RowOperations = TORCH_ROWS
) -> tuple[Tensor, Tensor]:
    """Second half of `sample`: token ids and invalid rows from what `process_logits` made, fp32 [R, V]."""
    best = operations.find_max(processed)
    invalid = ~best.values.isfinite()
    token_ids = best.indices
    groups = batch.groups
    if len(groups.plain_rows) > 0:
        token_ids[groups.plain_rows] = operations.draw(processed, best.values, batch)
    for candidates in _ranked(processed, best.values, batch, operations):
        token_ids[candidates.rows] = _choose(candidates, batch)
    return token_ids.masked_fill(invalid, 0), invalid


def target_probs(logits: Tensor, batch: SamplingBatch, allowed: AllowedTokens | None = None) -> TargetProbs:
    """The probabilities that `sample` draws with, for verifiers that need them; arguments as in `sample`.

    Greedy rows are one-hot. The noise of the batch plays no part.
    """
    return choice_probs(process_logits(logits, batch, allowed), batch)


def choice_probs(processed: Tensor, batch: SamplingBatch) -> TargetProbs:
    """Second half of `target_probs`, from what `process_logits` made, fp32 [R, V]."""
    best = row_max(processed)
    groups = batch.groups
    scores = torch.full_like(processed, float("-inf"))  # [R, V]
    scores[groups.greedy_rows, best.indices[groups.greedy_rows]] = 0.0
    scores[groups.plain_rows] = _plain_scores(processed, best.values, batch)
    for candidates in _ranked(processed, best.values, batch):
        scores[candidates.rows.unsqueeze(1), candidates.token_ids] = candidates.scores
    invalid = ~best.values.isfinite()
    return TargetProbs(scores.softmax(dim=-1).masked_fill_(invalid.unsqueeze(1), float("nan")), invalid)


def _scores(processed: Tensor, row_max: Tensor, batch: SamplingBatch, rows: Tensor) -> Tensor:
    """(logit - maximum) / temperature of some rows: fp32 [len(rows), V], none above 0.

    Subtracting first keeps the best token at 0, so a tiny temperature sends the others to -inf and overflows nothing.
    """
    top = row_max[rows].unsqueeze(1)  # [len(rows), 1]
    differences = processed - top if len(rows) == len(processed) else processed[rows].sub_(top)
    return differences.div_(batch.temperature[rows])


def _plain_scores(processed: Tensor, row_max: Tensor, batch: SamplingBatch) -> Tensor:
    rows = batch.groups.plain_rows
    return apply_min_p(_scores(processed, row_max, batch, rows), batch.min_p[rows])


def _ranked(
    processed: Tensor, row_max: Tensor, batch: SamplingBatch, operations: RowOperations = TORCH_ROWS
) -> Iterator[Candidates]:
    """What the rows with top_k or top_p keep; `rows` of the results count in the batch."""
    all_rows = batch.groups.ranked_rows
    chunk = max(1, len(all_rows))
    if processed.device.type == "cpu":
        chunk = max(1, _CHUNK_LOGITS // batch.vocab_size)
    for start in range(0, len(all_rows), chunk):
        rows = all_rows[start : start + chunk]
        limits = Limits(batch.top_k[rows], batch.top_p[rows], batch.min_p[rows], batch.groups.max_top_k)
        scores = _scores(processed, row_max, batch, rows)
        for found in ranked_candidates(scores, limits, operations.rank, operations.sum_mass):
            yield Candidates(rows[found.rows], found.token_ids, found.scores)


def _choose(candidates: Candidates, batch: SamplingBatch) -> Tensor:
    """Gumbel-max over the kept tokens: int64 [C]. Bit-equal to the argmax over the whole vocabulary."""
    token_ids, scores = candidates.token_ids, candidates.scores
    if len(scores) == 0:
        return candidates.rows
    if scores.device.type == "cpu":
        # Kept tokens are a prefix of the ranks: leave the noise of the rest uncomputed. (At least one: invalid rows.)
        num_kept = max(1, int((scores > float("-inf")).sum(dim=-1).max()))
        token_ids, scores = token_ids[:, :num_kept], scores[:, :num_kept]
    keys = batch.noise_keys(candidates.rows)
    if token_ids.shape[1] * 4 < batch.vocab_size:
        noise = gumbel_noise_for(*keys, Purpose.SAMPLE, token_ids)
    else:
        noise = gumbel_noise(*keys, Purpose.SAMPLE, batch.vocab_size).gather(1, token_ids)
    perturbed = scores + noise  # [C, K]
    best = perturbed.amax(dim=-1, keepdim=True)
    return token_ids.masked_fill(perturbed != best, batch.vocab_size).amin(dim=-1)
