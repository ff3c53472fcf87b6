"""What several repetitions of a measurement come to."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

__all__ = ["spread"]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Least, median and largest."""
    return {"min": min(values), "median": median(values), "max": max(values)}
