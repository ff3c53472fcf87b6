"""How many tokens a request will still generate: its cap, or what its tenant's requests generated so far."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal, final

from tokenloom.interfaces.scheduler_events import RequestFinished
from tokenloom.request import FinishReason, RequestView

__all__ = ["Estimate", "OutputEstimate"]

Estimate = Literal["cap", "tenant_mean"]

_MAX_TENANTS = 1_000
_MEMORY = 50.0
"""Requests over which the mean runs: each later one has a weight of 1/50."""


@final
class OutputEstimate:
    """Predicts outputs. A tenant without a finished request, or not among the last 1,000 to have one, gets the cap."""

    def __init__(self, estimate: Estimate) -> None:
        self._estimate = estimate
        self._means: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """tenant -> (mean output, requests seen, at most `_MEMORY`), the least recently updated first."""

    def num_left(self, request: RequestView) -> float:
        """Output tokens still to come: at least 1, at most what the request may generate."""
        cap = max(1, request.max_total_tokens - request.num_tokens)
        if self._estimate == "cap" or request.tenant not in self._means:
            return cap
        return min(cap, max(1.0, self._means[request.tenant][0] - request.num_output_tokens))

    def observe(self, event: RequestFinished) -> None:
        """Learns from a request that came to its own end."""
        request = event.request
        if self._estimate == "cap" or event.reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        mean, count = self._means.pop(request.tenant, (0.0, 0.0))
        count = min(count + 1.0, _MEMORY)
        self._means[request.tenant] = (mean + (request.num_output_tokens - mean) / count, count)
        if len(self._means) > _MAX_TENANTS:
            self._means.popitem(last=False)
