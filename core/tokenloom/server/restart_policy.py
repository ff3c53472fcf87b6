"""How often a process that dies is started again, and after which pause."""

from __future__ import annotations

from typing import final

__all__ = ["RestartPolicy"]

_STABLE_S = 60.0
"""A process that worked for so long has recovered: its next death is the first in a row."""
_MAX_PAUSE_S = 60.0


@final
class RestartPolicy:
    """Counts deaths in a row. Times are seconds on the caller's clock.

    Attributes:
        num_in_row: deaths since the process last worked for a while.
    """

    def __init__(self, max_restarts: int, backoff_s: float) -> None:
        """The first restart in a row comes at once, the second after `backoff_s`, the third after twice as long ..."""
        self._max_restarts = max_restarts
        self._backoff_s = backoff_s
        self._working_since_s: float | None = None
        self.num_in_row = 0

    def note_working(self, now_s: float) -> None:
        """The process has started and works."""
        self._working_since_s = now_s

    def pause_s(self, now_s: float) -> float | None:
        """The process has died: how long to wait before it is started again; None: it is not."""
        if self._working_since_s is not None and now_s - self._working_since_s >= _STABLE_S:
            self.num_in_row = 0
        self._working_since_s = None
        self.num_in_row += 1
        if self.num_in_row > self._max_restarts:
            return None
        if self.num_in_row == 1:
            return 0.0
        return float(min(_MAX_PAUSE_S, self._backoff_s * 2 ** min(self.num_in_row - 2, 32)))
