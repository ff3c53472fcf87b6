"""How far the services of tenants part while they wait: the measure of fairness of virtual token counters.

Source: Y. Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024.
"""

from __future__ import annotations

from typing import final

__all__ = ["OUTPUT_COST", "ServiceGap"]

OUTPUT_COST = 2
"""Service that an output token stands for; a prompt token is 1. As `scheduler=fair_share` counts by default."""


@final
class ServiceGap:
    """Counters of service; that of a tenant that comes back to the queue is lifted to the least one there.

    So what a tenant did not ask for while it was away is no grievance. A request waits until its first token.
    """

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._num_waiting: dict[str, int] = {}
        self._level = 0.0
        self.largest = 0.0
        """The largest difference so far between tenants that waited at the same time."""

    def wait(self, tenant: str) -> None:
        """A request of a tenant joins the queue."""
        if tenant not in self._num_waiting:
            self._counters[tenant] = max(self._counters.get(tenant, 0.0), self._least())
        self._num_waiting[tenant] = self._num_waiting.get(tenant, 0) + 1

    def begin(self, tenant: str) -> None:
        """A request of a tenant leaves the queue; what it got by then was told."""
        self._num_waiting[tenant] -= 1
        if not self._num_waiting[tenant]:
            del self._num_waiting[tenant]
            self._level = max(self._level, self._counters[tenant])

    def serve(self, tenant: str, service: float) -> None:
        """A tenant got some service."""
        self._counters[tenant] += service

    def measure(self) -> None:
        """Compares the tenants that wait now; to be called when a step's service was told."""
        if len(self._num_waiting) > 1:
            waiting = [self._counters[tenant] for tenant in self._num_waiting]
            self.largest = max(self.largest, max(waiting) - min(waiting))

    def _least(self) -> float:
        """The least counter of tenants that wait; while nobody does, the largest of those that left."""
        return min((self._counters[tenant] for tenant in self._num_waiting), default=self._level)
