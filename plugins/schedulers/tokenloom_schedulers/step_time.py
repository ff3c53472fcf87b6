"""How long a step takes, learned from those that landed: a constant part, and one in proportion to its tokens."""

from __future__ import annotations

import math
from array import array
from typing import final

__all__ = ["StepTime"]

_KEEP = 0.995
"""Weight of the past, per step: half of it is gone after 140 steps."""
_NUM_ERRORS = 300


@final
class StepTime:
    """A straight line through (tokens, seconds), by least squares with exponential forgetting.

    Equal steps in equal order give an equal line. Memory is that of the last 300 errors.
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._mean_tokens = 0.0
        self._mean_s = 0.0
        self._variance = 0.0
        self._covariance = 0.0
        self._errors = array("d", bytes(8 * _NUM_ERRORS))
        self._num_errors = 0

    @property
    def per_token_s(self) -> float:
        """The part in proportion to the tokens; 0 as long as all steps had equally many."""
        return max(0.0, self._covariance / self._variance) if self._variance > 0.0 else 0.0

    @property
    def fixed_s(self) -> float:
        """The constant part."""
        return max(0.0, self._mean_s - self.per_token_s * self._mean_tokens)

    def predict(self, num_tokens: float) -> float:
        """Seconds of a step of so many tokens; 0 before the first has landed."""
        return self.fixed_s + num_tokens * self.per_token_s

    def error(self, quantile: float) -> float:
        """How far steps took longer than predicted at the time, at a quantile of the last ones; 0 if never.

        The rank is that of conformal prediction, which covers the next step with that probability: of fewer than 100
        errors, p99 is the largest.
        """
        count = min(self._num_errors, _NUM_ERRORS)
        if count == 0:
            return 0.0
        return max(0.0, sorted(self._errors[:count])[min(count, math.ceil(quantile * (count + 1))) - 1])

    def num_tokens_within(self, target_s: float) -> float:
        """Most tokens of a step that takes `target_s`; infinite while tokens seem to cost nothing."""
        left_s = target_s - self.fixed_s
        if left_s <= 0.0:
            return 0.0
        return left_s / self.per_token_s if self.per_token_s > 0.0 else math.inf

    def observe(self, num_tokens: int, duration_s: float) -> None:
        """Learns from a step."""
        if self._weight > 0.0:
            self._errors[self._num_errors % _NUM_ERRORS] = duration_s - self.predict(num_tokens)
            self._num_errors += 1
        self._weight = _KEEP * self._weight + 1.0
        share = 1.0 / self._weight
        tokens_off, time_off = num_tokens - self._mean_tokens, duration_s - self._mean_s
        self._mean_tokens += share * tokens_off
        self._mean_s += share * time_off
        self._variance = (1.0 - share) * (self._variance + share * tokens_off * tokens_off)
        self._covariance = (1.0 - share) * (self._covariance + share * tokens_off * time_off)
