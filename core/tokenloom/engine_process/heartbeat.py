"""When an engine last began a turn of its loop, in memory that its supervisor reads."""

from __future__ import annotations

import time
from collections.abc import MutableSequence
from typing import final

__all__ = ["MAX_PERIOD_S", "Heartbeat", "period_s"]

MAX_PERIOD_S = 1.0
_BEATS_PER_TIMEOUT = 4


def period_s(timeout_s: float | None) -> float:
    """How often an idle engine beats, and its supervisor looks, for a limit on the age of a beat; None: no limit."""
    return MAX_PERIOD_S if timeout_s is None else min(MAX_PERIOD_S, timeout_s / _BEATS_PER_TIMEOUT)


@final
class Heartbeat:
    """One number that the engine writes and its supervisor reads: seconds of `time.monotonic`, 0 before the first beat.

    Attributes:
        period_s: an engine without work beats so often; one at work, once a step.
    """

    def __init__(self, cell: MutableSequence[float], period_s: float = MAX_PERIOD_S) -> None:
        """`cell` has one element; between processes, shared memory of type double."""
        self.period_s = period_s
        self._cell = cell

    @classmethod
    def unshared(cls) -> Heartbeat:
        """One that nobody reads."""
        return cls([0.0])

    def beat(self) -> None:
        """A turn begins."""
        self._cell[0] = time.monotonic()

    def clear(self) -> None:
        """There is no beat yet."""
        self._cell[0] = 0.0

    def age_s(self) -> float:
        """How long ago the last beat was; 0 before the first one."""
        last_s = self._cell[0]
        return time.monotonic() - last_s if last_s else 0.0
