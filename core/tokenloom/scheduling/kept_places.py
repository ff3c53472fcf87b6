"""Places for those that wait for a prefix in flight: whoever comes behind them may take what is left beside these."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from tokenloom.interfaces.scheduler import Ledger, SchedulerView, Shortfall
from tokenloom.interfaces.scheduling_policy import StepLimits
from tokenloom.request import RequestView

__all__ = ["KeptPlaces"]


@final
class KeptPlaces:
    """What requests that wait for a prefix in this step will take once it is there: a slot each, blocks, a token.

    They hold nothing while they wait, so what they need could be gone when the prefix has landed. Those that run may
    take more by then, too: what each of them takes within the next block_size steps is left to it. Counted anew in
    every step: nothing is remembered.
    """

    def __init__(self, view: SchedulerView, limits: StepLimits, ledger: Ledger) -> None:
        self._ledger = ledger
        self._block_size = view.limits.block_size
        self._max_tokens = view.limits.max_num_batched_tokens
        self._max_chunk = self._max_tokens if limits.max_chunk_tokens is None else limits.max_chunk_tokens
        self._may_be_partial = limits.max_num_partial_prefills is None and limits.max_long_partial_prefills is None
        self._num_blocks = 0
        self._num_spare_tokens = 0
        self.requests: list[RequestView] = []
        """Who waits for a prefix, in the order in which they are served."""

    def open(self, running: Iterable[RequestView], num_spare_tokens: int) -> None:
        """Before the first place is kept.

        Args:
            running: who runs, and who starts before it in this step.
            num_spare_tokens: what this step leaves to prompts, and so the next one if they take as much again.
        """
        self._num_blocks = sum(self._growth(request) for request in running)
        self._num_spare_tokens = num_spare_tokens

    def keep(self, request: RequestView, num_coming: int) -> None:
        """Keeps a place for a request that waits for `num_coming` tokens of a prefix.

        What it shares, cached or coming, is held by the request that computes it; it lacks the blocks behind that.
        """
        frontier = self._ledger.cached_tokens(request) + num_coming
        end = frontier + min(self._ledger.need(request) - num_coming, self._max_tokens)
        self._num_blocks += -(-end // self._block_size) - frontier // self._block_size
        self._num_spare_tokens -= 1
        self.requests.append(request)

    def missing(self, request: RequestView, num_own: int, count: int) -> Shortfall | None:
        """What a request that comes behind those lacks, with `count` of its `num_own` tokens granted on the ledger."""
        if not self.requests:
            return None
        if num_own > count and not self._may_be_partial:
            return Shortfall("tokens", num_own - count)
        num_too_many = self._num_again(num_own, count) - self._num_spare_tokens
        if num_too_many > 0:
            return Shortfall("tokens", num_too_many)
        num_missing = self._num_blocks + self._growth(request) - self._ledger.spare_blocks
        return Shortfall("blocks", num_missing) if num_missing > 0 else None

    def take(self, request: RequestView, num_own: int, count: int) -> None:
        """Notes that such a request starts."""
        if self.requests:
            self._num_spare_tokens -= self._num_again(num_own, count)
            self._num_blocks += self._growth(request)

    def _num_again(self, num_own: int, count: int) -> int:
        """Tokens that a request will take in the next step, where those that run come before those that wait."""
        return 1 if count >= num_own else min(num_own - count, self._max_chunk)

    def _growth(self, request: RequestView) -> int:
        """Blocks per KV group that a request takes within block_size steps, beside those that it holds by now."""
        known = request.num_tokens + request.num_placeholder_tokens
        longest = min(known + self._block_size, request.max_total_tokens)
        return max(0, -(-longest // self._block_size) - self._ledger.num_blocks(request))
