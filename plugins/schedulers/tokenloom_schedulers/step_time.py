"""How long a step takes, learned from those that landed: a constant part, and one in proportion to its tokens."""

from __future__ import annotations

import math
from typing import final

import numpy as np

from tokenloom.scheduling import FadingLine

__all__ = ["StepTime"]

_KEEP = 0.995
"""Weight of the past, per step: half of it is gone after 140 steps."""
_NUM_KEPT = 300
_MOST_RATIO = 2.0
"""No step counts as longer than this times what was expected; one that was is an outlier."""
_SLOW_RATIO, _FAST_RATIO = 1.4, 0.5
"""Steps beyond these are surprises."""
_NUM_SURPRISES = 3
"""So many of one kind in a row are no accident: steps have become slower, or faster, and the past says no more."""
_NUM_TRUSTED = 8
"""Steps before which everything is news and nothing a surprise."""


@final
class StepTime:
    """A straight line through (tokens, seconds), and how far the last 300 steps are from it.

    A single slow step, as when the machine was busy with something else, moves the line no further than one that took
    twice what was expected.
    """

    def __init__(self) -> None:
        self._tokens = np.zeros(_NUM_KEPT)
        self._seconds = np.zeros(_NUM_KEPT)
        self._is_outlier = np.zeros(_NUM_KEPT, np.bool_)
        self._line = FadingLine(_KEEP)
        self._num_steps = 0
        """Since the past was last given up."""
        self._num_surprises = 0
        """In a row; below 0 for fast ones."""
        self._first_ratio = 1.0
        """Most that one of the first steps took by what was expected at the time."""

    @property
    def per_token_s(self) -> float:
        """The part in proportion to the tokens; 0 as long as all steps had equally many."""
        return self._line.slope()

    @property
    def fixed_s(self) -> float:
        """The constant part."""
        return max(0.0, self._line.mean_y - self.per_token_s * self._line.mean_x)

    def predict(self, num_tokens: float) -> float:
        """Seconds of a step of so many tokens; 0 before the first has landed."""
        return self.fixed_s + num_tokens * self.per_token_s

    def error(self, quantile: float) -> float:
        """By which share steps take longer than the line says, at a quantile of the last ones: 0 .. 1, 0 if never.

        The rank is that of conformal prediction, which covers the next step with that probability: of fewer than 100
        steps, p99 is the largest. But as many outliers as the quantile has room for are none of them from the first
        on, or a single one would be the p99 of the next hundred steps.
        """
        count = min(self._num_steps, _NUM_KEPT)
        if count == 0:
            return 0.0
        expected_s = self.fixed_s + self.per_token_s * self._tokens[:count]
        ratios = self._seconds[:count] / np.maximum(expected_s, np.finfo(np.float64).tiny)
        num_left_out = min(int(np.count_nonzero(self._is_outlier[:count])), int((1.0 - quantile) * _NUM_KEPT))
        place = max(1, min(count - num_left_out, math.ceil(quantile * (count + 1)))) - 1
        # A line passes close to a few points, wherever they are: what it said before it saw them tells more.
        least = self._first_ratio if self._num_steps < _NUM_TRUSTED else 1.0
        return float(np.clip(np.partition(ratios, place)[place], least, _MOST_RATIO)) - 1.0

    def num_tokens_within(self, target_s: float) -> float:
        """Most tokens of a step that takes `target_s`; infinite while tokens seem to cost nothing."""
        left_s = target_s - self.fixed_s
        if left_s <= 0.0:
            return 0.0
        return left_s / self.per_token_s if self.per_token_s > 0.0 else math.inf

    def observe(self, num_tokens: int, duration_s: float) -> None:
        """Learns from a step."""
        expected_s, most_s = self.predict(num_tokens), math.inf
        if self._num_steps >= _NUM_TRUSTED:
            most_s = _MOST_RATIO * expected_s
            kind = int(duration_s > _SLOW_RATIO * expected_s) - int(duration_s < _FAST_RATIO * expected_s)
            self._num_surprises = kind + (self._num_surprises if kind * self._num_surprises > 0 else 0)
        elif expected_s > 0.0:
            self._first_ratio = min(_MOST_RATIO, max(self._first_ratio, duration_s / expected_s))
        if abs(self._num_surprises) == _NUM_SURPRISES:
            self._give_up_the_past()
            most_s = math.inf
        self._learn(num_tokens, duration_s, most_s)

    def _learn(self, num_tokens: float, duration_s: float, most_s: float) -> None:
        place = self._num_steps % _NUM_KEPT
        self._tokens[place], self._seconds[place] = num_tokens, duration_s
        self._is_outlier[place] = duration_s > most_s
        self._num_steps += 1
        self._line.observe(num_tokens, min(duration_s, most_s))

    def _give_up_the_past(self) -> None:
        """Forgets all but the surprises that came before the last one."""
        places = [(self._num_steps - back) % _NUM_KEPT for back in range(_NUM_SURPRISES - 1, 0, -1)]
        recent = [(float(self._tokens[place]), float(self._seconds[place])) for place in places]
        self._line, self._num_steps, self._num_surprises, self._first_ratio = FadingLine(_KEEP), 0, 0, 1.0
        for num_tokens, duration_s in recent:
            self._learn(num_tokens, duration_s, math.inf)
