"""What a draft costs, from the steps that have landed: plain steps beside those that verified drafts, by batch size."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import final

from tokenloom.interfaces.draft_policy import DraftStep
from tokenloom_spec_decode.adaptive_account import DraftAccount

__all__ = ["DraftCosts"]

_NUM_SAMPLES = 9
"""Steps of each kind that count, the latest; their median shrugs off a step that something else delayed."""
_SIZES_PER_OCTAVE = 4
_NEAR = 4
"""Batch sizes are told apart by quarter octaves; what was measured within one octave is better than a guess, and makes
up for samples that are missing."""
_FREE_TOKENS = 8
"""Before anything is measured: a step takes as long as if reading the weights cost as much as running 8 tokens."""
_STALE_STEPS = 96
"""Steps with drafts after which a plain one is wanted again."""
_LEAST_DRAFTS = 0.25
"""Drafts for each request in a step that measures their price; fewer are lost in the noise."""
_LEAST_SAMPLES = 3
"""A price below the guess is not believed before so many steps have measured it."""
_GROWTH = 2
"""A length that is not known yet is at most so many times the longest one that is."""


@final
@dataclass(slots=True)
class _Measured:
    """Steps of about one batch size.

    Attributes:
        plain_s: seconds of steps that verified no drafts.
        silent_s: seconds of proposing in steps that proposed none: looking in vain, or keeping a drafter's own KV.
        verify: what verifying one draft for each request took, in plain steps of that time: what the machine was like
            is in both.
        propose: what proposing one took, likewise.
        num_since_plain: steps since a plain one.
        longest: drafts of one request, the most that were verified in a step that measured their price.
    """

    plain_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_SAMPLES))
    silent_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_SAMPLES))
    verify: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_SAMPLES))
    propose: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_SAMPLES))
    num_since_plain: int = 0
    longest: int = 0


@final
class DraftCosts:
    """Prices of drafts by batch size. Steps with chunks of prompts do not count: they say little about decoding."""

    def __init__(self) -> None:
        self._by_size: dict[int, _Measured] = {}
        self._accounts: dict[int, DraftAccount] = {}
        """By octave: a batch that grows or shrinks is not for long of one size."""
        self._known: dict[int, tuple[float, int]] = {}
        self._trials: dict[int, int] = {}
        """Answers of `_measured` and `longest_trial` since anything was learnt: they are asked for each request."""

    def observe(self, step: DraftStep, *, is_for_gain: bool = False) -> bool:
        """Takes a step into account.

        Args:
            step: that has landed.
            is_for_gain: what was drafted and verified in it was expected to pay.

        Returns:
            Whether `price` or `is_paying` may answer otherwise than before.
        """
        num_rows = step.num_rows
        if num_rows == 0 or step.num_own_tokens != num_rows:
            return False
        measured = self._by_size.setdefault(_size(num_rows), _Measured())
        num_drafts = sum(drafts.num_drafts for drafts in step.verified)
        forward_s = step.duration_s - step.draft_s
        account = self._accounts.setdefault(_octave(num_rows), DraftAccount())
        was_open = account.is_open
        account.pass_by()
        plain_s, silent_s = median(measured.plain_s or (0.0,)), median(measured.silent_s or (0.0,))
        if is_for_gain and (num_drafts or step.draft_s) and measured.plain_s:
            num_accepted = sum(drafts.num_accepted_tokens for drafts in step.verified)
            spent = step.duration_s / plain_s - 1.0 if plain_s > 0.0 else 0.0
            account.book(num_accepted / num_rows, spent, num_rows)
        if num_drafts:
            measured.num_since_plain += 1
            if num_drafts >= _LEAST_DRAFTS * num_rows and plain_s > 0.0:
                measured.verify.append((forward_s - plain_s) / num_drafts * num_rows / (plain_s + silent_s))
                measured.longest = max(measured.longest, *(drafts.num_drafts for drafts in step.verified))
        else:
            measured.plain_s.append(forward_s)
            measured.num_since_plain = 0
        if not step.num_proposed:
            measured.silent_s.append(step.draft_s)
        elif plain_s > 0.0:
            measured.propose.append((step.draft_s - silent_s) / step.num_proposed * num_rows / (plain_s + silent_s))
        is_due = bool(num_drafts or step.num_proposed)
        if is_due:
            self._known.clear()
            self._trials.clear()
        return is_due or account.is_open != was_open

    def price(self, num_rows: int) -> float:
        """What one draft for each of so many requests costs, proposing and verifying, in plain steps."""
        guess, (known, num_samples) = num_rows / (num_rows + _FREE_TOKENS), self._measured(num_rows)
        return known if num_samples >= _LEAST_SAMPLES else max(known, guess)

    def would_learn(self, num_rows: int, num_drafts: float) -> bool:
        """Whether too few steps have measured the price yet, and one with so many drafts for each request would."""
        return num_drafts >= _LEAST_DRAFTS and self._measured(num_rows)[1] < _LEAST_SAMPLES

    def longest_trial(self, num_rows: int) -> int:
        """Most drafts for a request of so many; what more would cost is too uncertain yet."""
        longest = self._trials.get(num_rows)
        if longest is None:
            known = max((measured.longest for measured in self._near(num_rows)), default=0)
            longest = self._trials[num_rows] = max(1, _GROWTH * known)
        return longest

    def is_paying(self, num_rows: int) -> bool:
        """Whether drafting has not been found to lose time with so many requests."""
        own = self._accounts.get(_octave(num_rows))
        return own is None or own.is_open

    def wants_plain(self, num_rows: int) -> bool:
        """Whether a step without drafts would tell something that is missing, or has become old."""
        own = self._by_size.get(_size(num_rows))
        if own is None or not own.plain_s:
            return self._measured(num_rows)[1] == 0
        return own.num_since_plain >= _STALE_STEPS

    def _measured(self, num_rows: int) -> tuple[float, int]:
        """The price by what was measured at this batch size, and, where that is little, at those around it; and how
        many steps have measured it, 0 where nothing is known."""
        known = self._known.get(num_rows)
        if known is None:
            known = self._known[num_rows] = self._pooled(num_rows)
        return known

    def _pooled(self, num_rows: int) -> tuple[float, int]:
        verify, propose = list[float](), list[float]()
        for measured in self._near(num_rows):
            if len(verify) < _NUM_SAMPLES:
                verify += measured.verify
            if len(propose) < _NUM_SAMPLES:
                propose += measured.propose
        if not verify:
            return 0.0, 0
        return max(0.0, median(verify)) + max(0.0, median(propose or (0.0,))), len(verify)

    def _near(self, num_rows: int) -> Iterator[_Measured]:
        """What is known of batch sizes within an octave, the nearest first; of two, the smaller one."""
        size = _size(num_rows)
        for distance in range(_NEAR + 1):
            for near in dict.fromkeys((size - distance, size + distance)):
                measured = self._by_size.get(near)
                if measured is not None:
                    yield measured


def _size(num_rows: int) -> int:
    return round(_SIZES_PER_OCTAVE * math.log2(num_rows)) if num_rows > 0 else 0


def _octave(num_rows: int) -> int:
    return round(math.log2(num_rows)) if num_rows > 0 else 0
