"""How much waits that was never admitted, and how much of it may."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from tokenloom.errors import OverloadedError, RequestError
from tokenloom.request import Request

__all__ = ["Backlog"]


@final
class Backlog:
    """Counts new requests from their arrival to their first admission. Preempted ones are not new any more."""

    def __init__(self, max_num_seqs: int, max_requests: int | None = None, max_tokens: int | None = None) -> None:
        """`max_tokens` limits the prompt tokens of those that wait; None sets no limit."""
        self._max_num_seqs = max_num_seqs
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self.num_requests = 0
        self.num_tokens = 0

    def check(self, requests: Sequence[Request], num_running: int) -> None:
        """Raises unless all of `requests` may wait beside those that do. Those that free slots will take do not count.

        Raises:
            RequestError: they never may, however few others run and wait.
            OverloadedError: not now.
        """
        num_new, limit = len(requests), self._max_requests
        if limit is not None and num_new > self._max_num_seqs + limit:
            raise RequestError(
                f"{num_new} requests at once never fit scheduler.max_num_seqs={self._max_num_seqs} and "
                f"scheduler.max_queued_requests={limit}; send fewer or raise one of them"
            )
        num_queued = self.num_requests + num_new - max(0, self._max_num_seqs - num_running)
        if num_queued <= 0:
            return
        if limit is not None and num_queued > limit:
            raise _full("requests", "requests", self.num_requests, num_new, limit)
        num_tokens = sum(request.num_prompt_tokens for request in requests)
        if self._max_tokens is not None and self.num_tokens + num_tokens > self._max_tokens:
            raise _full("tokens", "prompt tokens", self.num_tokens, num_tokens, self._max_tokens)

    def enter(self, request: Request) -> None:
        """A new request waits."""
        self.num_requests += 1
        self.num_tokens += request.num_prompt_tokens

    def leave(self, request: Request) -> None:
        """A request is admitted for the first time, or ends before that."""
        self.num_requests -= 1
        self.num_tokens -= request.num_prompt_tokens


def _full(resource: str, noun: str, num_waiting: int, num_new: int, limit: int) -> OverloadedError:
    return OverloadedError(
        f"the queue is full: {num_waiting} {noun} wait, {num_new} more exceed scheduler.max_queued_{resource}={limit}; "
        "try again later",
        resource=resource,
        limit=limit,
        current=num_waiting,
    )
