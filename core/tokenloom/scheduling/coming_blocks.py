"""Blocks that the grants of one step will complete: who needs the same ones next had better wait for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from tokenloom.interfaces.cache import BlockKey
from tokenloom.interfaces.scheduler import Grant
from tokenloom.kv.manager import KVManager
from tokenloom.request import Request

__all__ = ["ComingBlocks"]


@final
class ComingBlocks:
    """Which request completes which block in this step, as far as its tokens are known.

    A request waits only for a block that this very step computes for an owner that holds its grant already. So a step
    in which somebody waits computes something; nobody waits for an owner that ended, was preempted or gets no tokens;
    nobody waits for an owner that is served after it; and nobody waits for more steps than its prompt has blocks. When
    the owner is gone, the first follower starts behind the blocks that were published, and the others follow it.
    """

    def __init__(self, kv: KVManager) -> None:
        self._kv = kv
        self._block_size = kv.block_size
        self._lookahead = max(group.lookahead for group in kv.groups)
        self._owners: dict[BlockKey, str] = {}
        self._frontiers: dict[str, int] = {}
        self._choices: dict[str, list[str]] = {}

    def note(self, request: Request, grant: Grant) -> None:
        """Takes up a grant."""
        # A group with lookahead publishes its blocks that much later.
        done = request.num_computed_tokens + request.num_inflight_tokens + grant.num_cached_tokens - self._lookahead
        if request.choice_set:
            self._choices.setdefault(request.choice_set, []).append(request.request_id)
            self._frontiers[request.request_id] = done
        if (done + grant.num_tokens) // self._block_size == done // self._block_size:
            # No block is completed, as in most steps of a decoding request.
            return
        first, end = max(0, done), min(done + grant.num_tokens, request.num_tokens - self._lookahead)
        if end // self._block_size > first // self._block_size:
            self._frontiers[request.request_id] = done
            for key in self._kv.prefix_keys(request)[first // self._block_size : end // self._block_size]:
                self._owners[key] = request.request_id

    def num_tokens(self, request: Request, num_cached: int, grants: Mapping[str, Grant]) -> int:
        """Tokens behind a waiting request's cached ones that will be found in the cache when the step has landed.

        Args:
            request: waits.
            num_cached: its tokens that are found by now.
            grants: those that hold; a grant that was taken back completes nothing.
        """
        if not self._frontiers or not self._kv.reads_cache(request):
            return 0
        first, end = num_cached // self._block_size, self._kv.most_cached_blocks(request)
        frontier = num_cached
        for key in self._kv.prefix_keys(request)[first:end] if self._owners else ():
            owner = self._owners.get(key)
            if owner is None or not self._reaches(owner, frontier + self._block_size, grants):
                break
            frontier += self._block_size
        # The end of a shared prompt can be copied. To wait for that alone is no use where the prompt is short.
        tail = self._kv.siblings.tail_tokens(request)
        siblings = self._choices.get(request.choice_set, ()) if frontier == end * self._block_size > 0 else ()
        if tail > frontier and any(self._reaches(owner, tail, grants) for owner in siblings):
            frontier = tail
        return frontier - num_cached

    def _reaches(self, owner: str, num_tokens: int, grants: Mapping[str, Grant]) -> bool:
        """Whether an owner will have computed so many tokens when the step has landed, and all their entries."""
        grant = grants.get(owner)
        return grant is not None and self._frontiers[owner] + grant.num_tokens >= num_tokens
