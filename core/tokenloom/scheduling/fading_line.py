"""A straight line through points that come one by one, by least squares; what is long past fades away."""

from __future__ import annotations

from typing import final

__all__ = ["FadingLine"]


@final
class FadingLine:
    """A line through (x, y). Equal points in equal order give an equal line; memory does not grow."""

    def __init__(self, keep: float) -> None:
        """`keep`: weight of the past, per point."""
        self._keep = keep
        self._weight = 0.0
        self._variance = 0.0
        self._covariance = 0.0
        self.mean_x = 0.0
        self.mean_y = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether no point has come yet."""
        return self._weight == 0.0

    def slope(self, least_spread: float = 0.0) -> float:
        """The slope, or 0 where it falls, or the variance of x is no more than this share of the mean of its square."""
        if self._variance <= least_spread * (self._variance + self.mean_x * self.mean_x):
            return 0.0
        return max(0.0, self._covariance / self._variance)

    def observe(self, x: float, y: float) -> None:
        """Adds a point."""
        self._weight = self._keep * self._weight + 1.0
        share = 1.0 / self._weight
        x_off, y_off = x - self.mean_x, y - self.mean_y
        self.mean_x += share * x_off
        self.mean_y += share * y_off
        self._variance = (1.0 - share) * (self._variance + share * x_off * x_off)
        self._covariance = (1.0 - share) * (self._covariance + share * x_off * y_off)
