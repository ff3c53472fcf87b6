"""Who takes the spans of requests; without a receiver nobody does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import final

from tokenloom.observability.request_trace import RequestTrace

__all__ = ["NoSpans", "RequestSpans"]


class RequestSpans(ABC):
    """Takes requests that are done with."""

    @abstractmethod
    def record(self, trace: RequestTrace) -> None:
        """Makes the spans of a request. Does not wait for whoever receives them."""

    @abstractmethod
    def close(self) -> None:
        """Sends what has not been sent, within a few seconds; idempotent."""


@final
class NoSpans(RequestSpans):
    """Without an endpoint nothing is recorded."""

    def record(self, trace: RequestTrace) -> None:
        pass

    def close(self) -> None:
        pass
