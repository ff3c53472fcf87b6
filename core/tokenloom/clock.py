"""The clock that the engine and every policy read: real time, or a virtual time that a simulator advances."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import final

__all__ = ["Clock", "LapTimer", "MonotonicClock", "VirtualClock"]


class Clock(ABC):
    """A source of time in seconds. Only differences mean anything."""

    @abstractmethod
    def now(self) -> float:
        """Returns the current time in seconds; never decreases."""


@final
class MonotonicClock(Clock):
    """Real time."""

    def now(self) -> float:
        return time.perf_counter()


@final
class VirtualClock(Clock):
    """Time that moves only when told to: for tests and simulation."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        return self._now_s

    def advance(self, duration_s: float) -> None:
        """Moves time forward. Raises AssertionError on a negative duration."""
        assert duration_s >= 0.0, f"time cannot run backwards: {duration_s} s"
        self._now_s += duration_s

    def advance_to(self, time_s: float) -> None:
        """Moves time forward to a moment; does nothing once it has passed."""
        self._now_s = max(self._now_s, time_s)


@final
class LapTimer:
    """Seconds by phase, where one follows the other without a gap. `times_s` is in the order of the first laps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_s = clock.now()
        self.times_s: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        """Adds what has passed since the last lap to a phase."""
        now_s = self._clock.now()
        self.times_s[phase] = self.times_s.get(phase, 0.0) + now_s - self._last_s
        self._last_s = now_s
