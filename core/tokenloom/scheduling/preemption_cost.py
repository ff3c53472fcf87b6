"""What a preemption costs, by what steps and transfers took so far: to compute a victim's KV again, or to move it."""

from __future__ import annotations

from typing import final

from tokenloom.scheduling.fading_line import FadingLine

__all__ = ["PreemptionCost"]

_KEEP = 0.98
"""Weight of the past, per step: half of it is gone after 35 steps."""


@final
class PreemptionCost:
    """Seconds per computed token and per moved byte, as decaying averages over steps.

    Tokens are the slope of step time over step size where sizes differ, since a step has a fixed cost that one more
    token does not add to; else their average.
    """

    def __init__(self) -> None:
        self._steps = FadingLine(_KEEP)
        self._moved_bytes = 0.0
        self._moving_s = 0.0

    def observe(self, num_tokens: int, duration_s: float, moved_bytes: int, transfer_s: float) -> None:
        """Learns from a step; `transfer_s` is the part of its duration that moving `moved_bytes` took."""
        if num_tokens:
            self._steps.observe(num_tokens, max(0.0, duration_s - transfer_s))
        if moved_bytes:
            self._moved_bytes = _KEEP * self._moved_bytes + moved_bytes
            self._moving_s = _KEEP * self._moving_s + transfer_s

    @property
    def per_token_s(self) -> float:
        """Seconds that one more token takes; 0 before the first step."""
        steps = self._steps
        if steps.is_empty:
            return 0.0
        return steps.slope(least_spread=1e-9) or steps.mean_y / steps.mean_x

    @property
    def per_byte_s(self) -> float | None:
        """Seconds to move one byte one way; None before the first transfer."""
        return self._moving_s / self._moved_bytes if self._moved_bytes else None

    def is_swap_cheaper(self, num_tokens: int, num_bytes: int) -> bool:
        """Whether moving `num_bytes` away and back takes less than computing `num_tokens` again.

        As long as nothing was moved, it is tried, to find out. Neither side counts on the prefix cache, where a victim
        may find part of its KV again either way: what will still be there when it comes back is not known now.
        """
        per_byte_s = self.per_byte_s
        return per_byte_s is None or 2 * num_bytes * per_byte_s < num_tokens * self.per_token_s
