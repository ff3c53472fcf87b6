"""What drafting has really brought, whatever was expected of it: tokens gained and time spent, step by step.

Expected gains rest on a price for each draft and on a rate for each request. What neither knows, looking for drafts in
vain, a step that jumps in price with its first draft, requests whose next draft is worse than their average, still
shows in the account; where it is in the red, drafting is left off for a while, twice as long each time.
"""

from __future__ import annotations

import math
from collections import deque
from typing import final

__all__ = ["DraftAccount"]

_MOST_STEPS, _LEAST_STEPS = 64, 12
"""Steps that count, the latest; and so many before the account says anything."""
_FIRST_PAUSE, _LONGEST_PAUSE = 32, 1024
"""Steps without drafting."""
_LEAST_SPREAD = 0.5
"""Standard deviation that what one request gains in a step has at least: a run of equal steps is no proof."""


@final
class DraftAccount:
    """The account of batch sizes that are about the same."""

    def __init__(self) -> None:
        self._net: deque[float] = deque(maxlen=_MOST_STEPS)
        self._pause = _FIRST_PAUSE
        self._num_left = 0

    @property
    def is_open(self) -> bool:
        """Whether drafting may go on."""
        return self._num_left == 0

    def pass_by(self) -> None:
        """A step of this batch size, of whatever kind."""
        self._num_left = max(0, self._num_left - 1)

    def book(self, gained: float, spent: float, num_rows: int) -> None:
        """Takes a step with drafting into account, and closes where such steps lose time.

        Args:
            gained: drafts accepted for each request, which is tokens beside the target's own.
            spent: how much longer the step took than a plain one, in plain steps.
            num_rows: requests that ran.
        """
        if not self.is_open:
            return
        self._net.append(gained - spent)
        count = len(self._net)
        if count < _LEAST_STEPS:
            return
        mean = math.fsum(self._net) / count
        spread = math.sqrt(math.fsum((net - mean) ** 2 for net in self._net) / count)
        spread = max(spread, _LEAST_SPREAD / math.sqrt(num_rows))
        # Early only if it is more than chance: the mean is as far below 0 as it may stray.
        slack = 0.0 if count == _MOST_STEPS else spread / math.sqrt(count)
        if mean + slack < 0.0:
            self._num_left, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
            self._net.clear()
        elif count == _MOST_STEPS and mean > 0.0:
            self._pause = _FIRST_PAUSE
