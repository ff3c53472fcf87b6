"""How much of the KV memory holds tokens while a workload is replayed, and how much is held for nothing."""

from __future__ import annotations

from typing import final

from tokenloom.engine import Engine

__all__ = ["KVUse"]

_STEPS_PER_SAMPLE = 8
"""A sample walks over all blocks that requests hold; in so few steps they hardly change."""


@final
class KVUse:
    """Means over busy time of what `Engine.kv_fragmentation` tells, sampled every few steps."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._unsampled_s = 0.0
        self._busy_s = 0.0
        self._sums = {"used_share": 0.0, "internal": 0.0, "external": 0.0}
        self._peak_used_share = 0.0

    def take(self, duration_s: float, engine: Engine) -> None:
        """Takes one step that has landed. A sample stands for the steps since the last one."""
        self._num_steps += 1
        self._unsampled_s += duration_s
        if self._num_steps % _STEPS_PER_SAMPLE or not engine.num_running:
            return
        now = engine.kv_fragmentation()
        shares = {"used_share": now.used_share, "internal": now.internal, "external": now.external}
        for name, value in shares.items():
            self._sums[name] += value * self._unsampled_s
        self._peak_used_share = max(self._peak_used_share, now.used_share)
        self._busy_s += self._unsampled_s
        self._unsampled_s = 0.0

    def summary(self) -> dict[str, float | None]:
        """Means of used_share, internal and external as in `KVFragmentation`, and the peak of used_share.

        None where nothing was sampled.
        """
        if not self._busy_s:
            return {**dict.fromkeys(self._sums), "used_share_peak": None}
        means = {name: total / self._busy_s for name, total in self._sums.items()}
        return {**means, "used_share_peak": self._peak_used_share}
