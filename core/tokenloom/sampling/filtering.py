"""top_k, top_p and min_p: which tokens a row may still choose, exact and independent of the batch around it.

All three keep a prefix of the row's tokens in rank order (score descending, equal scores by lowest id). Probabilities
are summed as 64-bit integers (units of 2^-40 of the best token's), because integer sums do not depend on their order: a
row alone, in a batch, on one thread or many, ranked in full or only as far as needed, keeps the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

__all__ = ["Candidates", "Limits", "Rank", "TotalMass", "apply_min_p", "rank_tokens", "ranked_candidates", "total_mass"]

Rank = Callable[[Tensor, int], tuple[Tensor, Tensor]]
"""`rank_tokens`, or what gives the same."""
TotalMass = Callable[[Tensor], Tensor]
"""`total_mass`, or what gives the same but for the last bits of exp()."""

_MASS_UNITS = 2.0**40
"""Vocabularies up to 2^22 tokens sum without overflow."""
_MAGNITUDE_BITS = 0x7FFFFFFF
_TOKEN_ID_BITS = 0xFFFFFFFF
_CPU_WIDTHS = (256, 4096)
"""How many tokens to rank at first where looking at the outcome costs nothing; rows that need more are ranked again."""


@final
@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of S rows: top_k int64 [S, 1] in 1..V, top_p fp32 [S, 1], min_p fp32 [S, 1]; max_top_k bounds top_k."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    max_top_k: int


@final
@dataclass(frozen=True, slots=True)
class Candidates:
    """The tokens that some rows keep.

    Attributes:
        rows: int64 [C], indices into the rows that were asked about.
        token_ids: int64 [C, K], in rank order.
        scores: fp32 [C, K], -inf where the token is not kept.
    """

    rows: Tensor
    token_ids: Tensor
    scores: Tensor


def rank_tokens(scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The first `width` tokens of each row in rank order: score descending, equal scores by lowest id.

    Args:
        scores: fp32 [S, V], none above 0 (differences to the row's maximum).
        width: 1..V.

    Returns:
        (token_ids int64 [S, width], their scores fp32 [S, width]).
    """
    vocab_size = scores.shape[-1]
    # Among numbers <= 0 the greater has the smaller magnitude bits. With the id below them every key is unique, so that
    # neither topk nor sort has a tie to break in its own way.
    magnitude = (scores.view(torch.int32) & _MAGNITUDE_BITS).to(torch.int64)
    keys = (magnitude << 32) | torch.arange(vocab_size, device=scores.device)  # [S, V]
    if width < vocab_size:
        keys = keys.topk(width, dim=-1, largest=False, sorted=True).values  # [S, width]
    else:
        keys = keys.sort(dim=-1).values
    return keys & _TOKEN_ID_BITS, (keys >> 32).to(torch.int32).view(torch.float32).neg()


def total_mass(scores: Tensor) -> Tensor:
    """The probabilities of all tokens relative to the row's best one, summed: fp32 [S, V] -> int64 [S] (see top)."""
    return _mass(scores).sum(dim=-1)


def apply_min_p(scores: Tensor, min_p: Tensor) -> Tensor:
    """Sets the scores of tokens below min_p times the best token's probability to -inf.

    Args:
        scores: fp32 [S, V], differences to the row's maximum, so that exp(score) is the ratio to its probability.
        min_p: fp32 [S, 1].

    Returns:
        fp32 [S, V]; on a CPU the scores themselves where no row has a min_p. Looking would make a device wait.
    """
    if scores.device.type == "cpu" and not bool(min_p.any()):
        return scores
    return scores.masked_fill(scores < min_p.log(), float("-inf"))


def ranked_candidates(
    scores: Tensor, limits: Limits, rank: Rank = rank_tokens, sum_mass: TotalMass = total_mass
) -> Iterator[Candidates]:
    """Ranks the tokens of each row and applies min_p, top_k and top_p, in this order.

    Each filter works on what the one before it kept: the probabilities that top_p sums are those of the survivors,
    normalised again. Every row appears in exactly one of the results, which only differ in how many tokens were ranked.

    Args:
        scores: fp32 [S, V], differences to the row's maximum after temperature.
        limits: the S rows' limits.
        rank: orders them.
        sum_mass: sums them where top_p counts all tokens.
    """
    scores = apply_min_p(scores, limits.min_p)
    vocab_size = scores.shape[1]
    rows = torch.arange(scores.shape[0], device=scores.device)  # [S]
    is_bounded = limits.max_top_k < vocab_size
    total = None if is_bounded else sum_mass(scores).unsqueeze(1)  # [S, 1]
    for width in _widths(scores.device, limits.max_top_k, vocab_size):
        top_k, top_p = limits.top_k[rows], limits.top_p[rows]
        token_ids, ranked = rank(scores if len(rows) == len(scores) else scores[rows], width)
        is_kept = _kept_tokens(ranked, top_k, top_p, None if total is None else total[rows])
        found = Candidates(rows, token_ids, ranked.masked_fill(~is_kept, float("-inf")))
        if width >= limits.max_top_k:
            yield found
            return
        # Complete: all top_k tokens are ranked, or the kept prefix ends before the ranked tokens do.
        is_complete = (top_k <= width).squeeze(1) | ((top_k == vocab_size).squeeze(1) & ~is_kept[:, -1])
        yield Candidates(rows[is_complete], found.token_ids[is_complete], found.scores[is_complete])
        rows = rows[~is_complete]
        if len(rows) == 0:
            return


def _widths(device: torch.device, max_top_k: int, vocab_size: int) -> tuple[int, ...]:
    # On an accelerator, looking at the outcome would make the host wait for it: one pass that is surely wide enough.
    if max_top_k < vocab_size or device.type != "cpu":
        return (max_top_k,)
    return (*(width for width in _CPU_WIDTHS if width < vocab_size), vocab_size)


def _kept_tokens(ranked: Tensor, top_k: Tensor, top_p: Tensor, total_mass: Tensor | None) -> Tensor:
    """Which of the ranked scores (fp32 [S, width]) top_k and top_p keep: bool [S, width], true on a prefix."""
    width = ranked.shape[1]
    rank = torch.arange(width, device=ranked.device)  # [width]
    is_kept = (rank < top_k) & (ranked > float("-inf"))
    mass = _mass(ranked) * is_kept
    total = mass.sum(dim=-1, keepdim=True)  # [S, 1]
    if total_mass is not None:
        total = torch.where(top_k <= width, total, total_mass)
    mass_before = mass.cumsum(dim=-1) - mass
    is_within = mass_before.to(torch.float64) < top_p.to(torch.float64) * total.to(torch.float64)
    # Rank 0 stays even if top_p is so small that it vanishes in fp32.
    return is_kept & (is_within | (top_p >= 1.0) | (rank == 0))


def _mass(scores: Tensor) -> Tensor:
    """Probabilities relative to the row's best token, as int64 multiples of 2^-40."""
    return scores.exp().mul_(_MASS_UNITS).to(torch.int64)
