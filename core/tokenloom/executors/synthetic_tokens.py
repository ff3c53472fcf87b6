"""Tokens of a model that does not exist: a pure function of (seed, choice, output position), and drafts about them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

__all__ = ["SyntheticTokens", "TokenSource", "propose_drafts"]

_MASK = (1 << 64) - 1
_TOKEN, _DRAFT = 0x51, 0xA7
"""Purposes of a draw, so that what a token is says nothing about whether a drafter finds it."""


class TokenSource(ABC):
    """What the simulated model says, and which of it a simulated drafter foresees."""

    @abstractmethod
    def token(self, seed: int, choice_index: int, position: int) -> int:
        """The token at an output position (0..) of a request."""

    @abstractmethod
    def is_foreseen(self, seed: int, choice_index: int, position: int, depth: int) -> bool:
        """Whether a draft for that position is right when `depth` drafts stand before it."""


@final
class SyntheticTokens(TokenSource):
    """Hashes of (seed, choice, position): equal in every run, whatever is scheduled with what."""

    def __init__(self, vocab_size: int, acceptance: Sequence[float]) -> None:
        """`acceptance`: by depth, how likely a draft is right if those before it are; the last one goes on for ever."""
        assert acceptance, "acceptance rates are missing"
        self._vocab_size = vocab_size
        self._thresholds = [int(rate * (1 << 32)) for rate in acceptance]

    def token(self, seed: int, choice_index: int, position: int) -> int:
        return _draw(seed, choice_index, position, _TOKEN) % self._vocab_size

    def is_foreseen(self, seed: int, choice_index: int, position: int, depth: int) -> bool:
        threshold = self._thresholds[min(depth, len(self._thresholds) - 1)]
        return _draw(seed, choice_index, position, _DRAFT) < threshold


def propose_drafts(
    source: TokenSource, vocab_size: int, seed: int, choice_index: int, position: int, max_drafts: int
) -> tuple[int, ...]:
    """A chain of drafts for the output positions from `position` on, some of them wrong."""
    drafts: list[int] = []
    for depth in range(max_drafts):
        token_id = source.token(seed, choice_index, position + depth)
        is_right = source.is_foreseen(seed, choice_index, position + depth, depth)
        drafts.append(token_id if is_right else (token_id + 1) % vocab_size)
    return tuple(drafts)


def _draw(seed: int, choice_index: int, position: int, purpose: int) -> int:
    """32 bits: the finalizer of SplitMix64 over the inputs, laid apart by odd multipliers.

    Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators" (2014).
    """
    x = seed + position * 0x9E3779B97F4A7C15 + choice_index * 0xD1B54A32D192ED03 + purpose * 0xABC98388FB8FAC03
    x = ((x & _MASK) ^ ((x & _MASK) >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return (x ^ (x >> 31)) >> 32
