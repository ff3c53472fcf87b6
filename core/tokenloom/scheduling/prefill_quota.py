"""How many tokens prompts may still take in a step, and how many of them may be under way."""

from __future__ import annotations

from typing import final

from tokenloom.interfaces.scheduler import Ledger, SchedulerView
from tokenloom.interfaces.scheduling_policy import StepLimits
from tokenloom.request import RequestStatus, RequestView

__all__ = ["PrefillQuota"]


@final
class PrefillQuota:
    """Counts the prompts of one step against the `StepLimits` of a policy.

    Tokens of a request that is preempted later in the same step stay counted: the quota may end up short of its limit,
    never over it.
    """

    def __init__(self, limits: StepLimits, view: SchedulerView, ledger: Ledger) -> None:
        self._limits = limits
        self._num_tokens = 0
        self._num_partial = 0
        self._num_long = 0
        if limits.max_num_partial_prefills is not None or limits.max_long_partial_prefills is not None:
            for request in view.running:
                self._count_partial(ledger.need(request) - request.num_drafts, 1)

    def cut(self, request: RequestView, need: int, count: int) -> int:
        """What the limits on tokens leave of `count` of the `need` tokens; 0 if nothing."""
        limits, num_own = self._limits, need - request.num_drafts
        if num_own <= 1:
            return count
        # Such a limit keeps long prompts from delaying others; a decoding request's drafts are no such thing.
        if limits.max_chunk_tokens is not None and num_own > limits.max_chunk_tokens:
            count = min(count, limits.max_chunk_tokens)
        return self.num_left(count)

    def num_left(self, most: int) -> int:
        """Tokens that prompts may still take of `most`."""
        limit = self._limits.max_prefill_tokens
        return most if limit is None else min(most, max(0, limit - self._num_tokens))

    def is_full(self, request: RequestView, need: int, count: int) -> bool:
        """Whether a waiting prompt would become one under way too many."""
        most, num_own = self._limits.max_num_partial_prefills, need - request.num_drafts
        return most is not None and count < num_own and self._num_partial >= most

    def is_full_of_long(self, request: RequestView, need: int, count: int) -> bool:
        """The same for long prompts; it may be overtaken by shorter ones meanwhile."""
        most, num_own = self._limits.max_long_partial_prefills, need - request.num_drafts
        return most is not None and count < num_own and self._is_long(num_own) and self._num_long >= most

    def take(self, request: RequestView, need: int, count: int) -> None:
        """Notes a grant of `count` of the `need` tokens."""
        num_own = need - request.num_drafts
        if num_own <= 1:
            return
        self._num_tokens += count
        if request.status is not RequestStatus.RUNNING and count < num_own:
            self._count_partial(num_own, 1)
        elif request.status is RequestStatus.RUNNING and count >= num_own:
            self._count_partial(num_own, -1)

    def _count_partial(self, num_own: int, change: int) -> None:
        if num_own > 1:
            self._num_partial += change
            self._num_long += change * self._is_long(num_own)

    def _is_long(self, num_own: int) -> bool:
        return num_own > self._limits.long_prefill_token_threshold
