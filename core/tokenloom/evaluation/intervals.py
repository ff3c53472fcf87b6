"""Confidence intervals of ratios by bootstrap: the units (windows, questions, trials) are drawn again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

__all__ = ["CONFIDENCE", "Bootstrap"]

CONFIDENCE = 0.95
_MOST_DRAWS = 1 << 22
"""Of units in one go, so that memory does not grow with their number."""

_Floats = NDArray[np.float64]


@final
@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Percentile intervals, seeded: equal seeds draw equal units, so that differences between variants are paired.

    Attributes:
        resamples: how many times all units are drawn, with replacement.
        seed: of the draws.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), section 13.3.
    """

    resamples: int = 1000
    seed: int = 0

    def interval(
        self,
        totals: Sequence[float],
        counts: Sequence[float],
        transform: Callable[[_Floats], _Floats] | None = None,
    ) -> list[float] | None:
        """The interval [low, high] of transform(sum of totals / sum of counts).

        Args:
            totals: per unit, e.g. the summed losses of a window.
            counts: per unit, e.g. its tokens.
            transform: rising, e.g. np.exp for a perplexity; None for the ratio itself.

        Returns:
            None where one unit says nothing about spread.
        """
        assert len(totals) == len(counts), f"{len(totals)} totals of {len(counts)} units"
        num_units = len(totals)
        if num_units < 2:
            return None
        values = np.stack([np.asarray(totals, np.float64), np.asarray(counts, np.float64)], axis=1)  # [num_units, 2]
        sums = np.concatenate([values[drawn].sum(axis=1) for drawn in self._draws(num_units)])  # [resamples, 2]
        tail = 50.0 * (1.0 - CONFIDENCE)
        found = np.percentile(sums[:, 0] / sums[:, 1], [tail, 100.0 - tail])
        if transform is not None:
            found = transform(found)
        return [float(found[0]), float(found[1])]

    def _draws(self, num_units: int) -> list[NDArray[np.int64]]:
        """Unit numbers [rows, num_units], all rows together `resamples`."""
        generator = np.random.default_rng(self.seed)
        rows = max(1, _MOST_DRAWS // num_units)
        return [
            generator.integers(num_units, size=(min(rows, self.resamples - first), num_units))
            for first in range(0, self.resamples, rows)
        ]
