"""What a draft costs, from the steps that have landed: plain steps beside those that verified drafts, by batch size."""

from __future__ import annotations

import math
from collections import deque
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
"""Batch sizes are told apart by quarter octaves; what was measured within one octave is better than a guess."""
_FREE_TOKENS = 8
"""Before anything is measured: a step takes as long as if reading the weights cost as much as running 8 tokens."""
_STALE_STEPS = 96
"""Steps with drafts after which a plain one is wanted again."""
_LEAST_DRAFTS = 0.25
"""Drafts for each request in a step that measures their price; fewer are lost in the noise."""


@final
@dataclass(slots=True)
class _Measured:
    """Steps of about one batch size.

    Attributes:
        plain_s: seconds of steps that verified no drafts.
        drafted: (seconds without proposing, drafts verified) of the others.
        proposed: (seconds of proposing, drafts proposed) of steps that proposed some.
        silent_s: seconds of proposing in steps that proposed none: looking in vain, or keeping a drafter's own KV.
        num_since_plain: steps since a plain one.
        price: as `DraftCosts.price`; None until both kinds were seen.
        account: what drafting has brought.
    """

    plain_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_SAMPLES))
    drafted: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_NUM_SAMPLES))
    proposed: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_NUM_SAMPLES))
    silent_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_SAMPLES))
    num_since_plain: int = 0
    price: float | None = None
    account: DraftAccount = field(default_factory=DraftAccount)

    def reckon(self, num_rows: int) -> None:
        """Works out the price anew."""
        if not self.plain_s or not self.drafted:
            return
        plain_s, silent_s = median(self.plain_s), median(self.silent_s or (0.0,))
        if plain_s <= 0.0:
            return
        verify_s = median((seconds - plain_s) / count for seconds, count in self.drafted)
        propose_s = median([(seconds - silent_s) / count for seconds, count in self.proposed] or (0.0,))
        self.price = (max(0.0, verify_s) + max(0.0, propose_s)) * num_rows / (plain_s + silent_s)


@final
class DraftCosts:
    """Prices of drafts by batch size. Steps with chunks of prompts do not count: they say little about decoding."""

    def __init__(self) -> None:
        self._by_size: dict[int, _Measured] = {}
        self._prices: dict[int, float] = {}
        """Answers of `price` since the last step: it is asked for each request."""

    def observe(self, step: DraftStep, *, is_for_gain: bool = False) -> bool:
        """Takes a step into account.

        Args:
            step: that has landed.
            is_for_gain: what was drafted and verified in it was expected to pay.

        Returns:
            Whether `price` or `is_paying` may answer otherwise than before.
        """
        self._prices.clear()
        num_rows = step.num_rows
        if num_rows == 0 or step.num_own_tokens != num_rows:
            return False
        measured = self._by_size.setdefault(_size(num_rows), _Measured())
        num_drafts = sum(drafts.num_drafts for drafts in step.verified)
        forward_s = step.duration_s - step.draft_s
        was_open = measured.account.is_open
        measured.account.pass_by()
        if is_for_gain and (num_drafts or step.draft_s) and measured.plain_s:
            plain_s = median(measured.plain_s)
            num_accepted = sum(drafts.num_accepted_tokens for drafts in step.verified)
            spent = step.duration_s / plain_s - 1.0 if plain_s > 0.0 else 0.0
            measured.account.book(num_accepted / num_rows, spent, num_rows)
        if num_drafts:
            measured.num_since_plain += 1
            if num_drafts >= _LEAST_DRAFTS * num_rows:
                measured.drafted.append((forward_s, num_drafts))
        else:
            measured.plain_s.append(forward_s)
            measured.num_since_plain = 0
        if step.num_proposed:
            measured.proposed.append((step.draft_s, step.num_proposed))
        else:
            measured.silent_s.append(step.draft_s)
        # Plain steps alone change a price little, and cost no time so.
        is_due = bool(num_drafts or step.num_proposed or measured.price is None)
        if is_due:
            measured.reckon(num_rows)
        return is_due or measured.account.is_open != was_open

    def price(self, num_rows: int) -> float:
        """What one draft for each of so many requests costs, proposing and verifying, in plain steps."""
        price = self._prices.get(num_rows)
        if price is None:
            known = self._nearest(num_rows)
            price = self._prices[num_rows] = num_rows / (num_rows + _FREE_TOKENS) if known is None else known
        return price

    def is_paying(self, num_rows: int) -> bool:
        """Whether drafting has not been found to lose time with so many requests."""
        own = self._by_size.get(_size(num_rows))
        return own is None or own.account.is_open

    def wants_plain(self, num_rows: int) -> bool:
        """Whether a step without drafts would tell something that is missing, or has become old."""
        own = self._by_size.get(_size(num_rows))
        if own is None or not own.plain_s:
            return self._nearest(num_rows) is None
        return own.num_since_plain >= _STALE_STEPS

    def _nearest(self, num_rows: int) -> float | None:
        """The price at the nearest batch size that is known; of two, at the smaller one."""
        size = _size(num_rows)
        for distance in range(_NEAR + 1):
            for near in (size - distance, size + distance):
                measured = self._by_size.get(near)
                if measured is not None and measured.price is not None:
                    return measured.price
        return None


def _size(num_rows: int) -> int:
    return round(_SIZES_PER_OCTAVE * math.log2(num_rows)) if num_rows > 0 else 0
