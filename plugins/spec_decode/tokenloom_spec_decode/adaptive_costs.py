"""What a draft costs, from the steps that have landed: plain steps beside those that verified drafts, by batch size."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median
from typing import final

from tokenloom.interfaces.draft_policy import DraftStep
from tokenloom_spec_decode.adaptive_account import DraftAccount

__all__ = ["DraftCosts", "typical_size"]

_NUM_SAMPLES = 9
"""Steps of each kind that count, the latest; their median shrugs off a step that something else delayed."""
_NUM_NEAREST = 5
"""Plain steps that one with drafts is compared with, the nearest in time. Machines that others use, too, change their
speed for seconds: against plain steps of a faster time all drafts seem dear, until some show how slow it is now."""
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
class _Sample:
    """What one step tells of the price of drafts.

    Attributes:
        is_verified: whether it verified drafts, or proposed some.
        step: its number.
        seconds: that it took for that.
        scale: requests for each draft.
        price: of one draft for each request, in plain steps of that time: what the machine was like is in both.
        num_plain: plain steps since; after so many as it is compared with, none to come is nearer.
    """

    is_verified: bool
    step: int
    seconds: float
    scale: float
    price: float = 0.0
    num_plain: int = 0


def _samples() -> deque[_Sample]:
    return deque(maxlen=_NUM_SAMPLES)


@final
@dataclass(slots=True)
class _Measured:
    """Steps of about one batch size.

    Attributes:
        plain: number and seconds of steps that verified no drafts.
        silent_s: seconds of proposing in steps that proposed none: looking in vain, or keeping a drafter's own KV.
        verify, propose: steps that verified, and that proposed drafts.
        num_since_plain: steps since a plain one.
        longest: drafts of one request, the most that were verified in a step that measured their price.
    """

    plain: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_NUM_SAMPLES))
    silent_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_SAMPLES))
    verify: deque[_Sample] = field(default_factory=_samples)
    propose: deque[_Sample] = field(default_factory=_samples)
    num_since_plain: int = 0
    longest: int = 0

    def plain_s(self, step: int) -> float:
        """Seconds of a plain step about the time of a step; 0 where nothing is known."""
        nearest = sorted(self.plain, key=lambda plain: abs(plain[0] - step))[:_NUM_NEAREST]
        return median([seconds for _, seconds in nearest] or (0.0,))

    def add(self, sample: _Sample) -> None:
        """Takes a step with drafts, compared with the plain ones of its time."""
        self._set_price(sample)
        (self.verify if sample.is_verified else self.propose).append(sample)

    def set_prices(self) -> bool:
        """Compares steps anew after a plain one, if that may be nearer to them; returns whether there were any."""
        found = [sample for sample in (*self.verify, *self.propose) if sample.num_plain < _NUM_NEAREST]
        for sample in found:
            self._set_price(sample)
            sample.num_plain += 1
        return bool(found)

    def _set_price(self, sample: _Sample) -> None:
        plain_s, silent_s = self.plain_s(sample.step), median(self.silent_s or (0.0,))
        extra_s, whole_s = sample.seconds - (plain_s if sample.is_verified else silent_s), plain_s + silent_s
        sample.price = extra_s * sample.scale / whole_s if whole_s > 0.0 else 0.0


@final
class DraftCosts:
    """Prices of drafts by batch size. Steps with chunks of prompts do not count: they say little about decoding."""

    def __init__(self) -> None:
        self._num_steps = 0
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
        self._num_steps += 1
        measured = self._by_size.setdefault(_size(num_rows), _Measured())
        num_drafts = sum(drafts.num_drafts for drafts in step.verified)
        account = self._accounts.setdefault(_octave(num_rows), DraftAccount())
        was_open = account.is_open
        account.pass_by()
        if is_for_gain and (num_drafts or step.draft_s) and measured.plain:
            num_accepted = sum(drafts.num_accepted_tokens for drafts in step.verified)
            plain_s = measured.plain_s(self._num_steps)
            spent = step.duration_s / plain_s - 1.0 if plain_s > 0.0 else 0.0
            account.book(num_accepted / num_rows, spent, num_rows)
        tells = self._sample(measured, step, num_drafts)
        if tells:
            self._known.clear()
            self._trials.clear()
        return tells or account.is_open != was_open

    def _sample(self, measured: _Measured, step: DraftStep, num_drafts: int) -> bool:
        """Adds what a step tells to what is known of its batch size. Returns whether that changes prices."""
        num_rows, forward_s, number = step.num_rows, step.duration_s - step.draft_s, self._num_steps
        has_plain = any(seconds > 0.0 for _, seconds in measured.plain)
        if num_drafts:
            measured.num_since_plain += 1
            if num_drafts >= _LEAST_DRAFTS * num_rows and has_plain:
                measured.add(_Sample(True, number, forward_s, num_rows / num_drafts))
                measured.longest = max(measured.longest, *(drafts.num_drafts for drafts in step.verified))
        else:
            measured.plain.append((number, forward_s))
            measured.num_since_plain = 0
        if not step.num_proposed:
            measured.silent_s.append(step.draft_s)
        elif has_plain:
            measured.add(_Sample(False, number, step.draft_s, num_rows / step.num_proposed))
        is_nearer = not num_drafts and measured.set_prices()
        return bool(num_drafts or step.num_proposed) or is_nearer

    def price(self, num_rows: int, *, at_most_guess: bool = False) -> float:
        """What one draft for each of so many requests costs, proposing and verifying, in plain steps.

        Args:
            num_rows: requests.
            at_most_guess: a price above what is taken before anything is measured may be a mistake; give the latter.
        """
        guess, (known, num_samples) = num_rows / (num_rows + _FREE_TOKENS), self._measured(num_rows)
        price = known if num_samples >= _LEAST_SAMPLES else max(known, guess)
        return min(price, guess) if at_most_guess else price

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
        if own is None or not own.plain:
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
        near = list(self._near(num_rows))
        verify, propose = [measured.verify for measured in near], [measured.propose for measured in near]
        num_samples = sum(map(len, verify))
        return (_typical(verify) + _typical(propose), num_samples) if num_samples else (0.0, 0)

    def _near(self, num_rows: int) -> Iterator[_Measured]:
        """What is known of batch sizes within an octave, the nearest first; of two, the smaller one."""
        size = _size(num_rows)
        for distance in range(_NEAR + 1):
            for near in dict.fromkeys((size - distance, size + distance)):
                measured = self._by_size.get(near)
                if measured is not None:
                    yield measured


def _typical(samples: Iterable[Sequence[_Sample]]) -> float:
    """The price by steps of some batch sizes, the nearest first: as many sizes as it takes.

    Or the price that the latest steps of the nearest size say, if that is lower: delays make drafts dearer, and where
    nothing is drafted for that, it would take long to measure anew.
    """
    prices, recent = list[float](), list[float]()
    for own in samples:
        recent = recent or [sample.price for sample in own][-_LEAST_SAMPLES:]
        if len(prices) < _NUM_SAMPLES:
            prices += [sample.price for sample in own]
    price, latest = median(prices or (0.0,)), median(recent or (0.0,))
    return max(0.0, min(price, latest) if len(recent) == _LEAST_SAMPLES and latest > 0.0 else price)


@lru_cache(maxsize=1024)
def typical_size(num_rows: int) -> int:
    """One batch size for all those that are not told apart from this one: their prices are the same."""
    return round(2.0 ** (_size(num_rows) / _SIZES_PER_OCTAVE)) if num_rows > 0 else 0


def _size(num_rows: int) -> int:
    return round(_SIZES_PER_OCTAVE * math.log2(num_rows)) if num_rows > 0 else 0


def _octave(num_rows: int) -> int:
    return (_size(num_rows) + _SIZES_PER_OCTAVE // 2) // _SIZES_PER_OCTAVE
