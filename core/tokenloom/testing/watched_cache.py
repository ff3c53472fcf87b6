"""A prefix cache beside a dictionary: every call to the plugin is compared with what the dictionary says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import final

from tokenloom.interfaces.cache import BlockKey, EvictionPolicy, PrefixCache, Reservation
from tokenloom.request import RequestView

__all__ = ["WatchedCache", "longest_hit"]


def longest_hit(found: Sequence[int], window_blocks: int | None) -> list[int]:
    """What `match` must return, by brute force; `found` holds the block id under each key, 0 where there is none."""
    for length in range(len(found), 0, -1):
        reach = length if window_blocks is None else min(length, window_blocks)
        if all(found[length - reach : length]):
            return [0] * (length - reach) + list(found[length - reach : length])
    return []


@final
class WatchedCache(PrefixCache):
    """Passes every call on; a difference is an AssertionError that names the call.

    Attributes:
        block_of: what is indexed by now, by key.
        num_hits: calls of `match` that found something.
        removed: blocks removed so far, in order.
        is_idle: whether a block is unreferenced; only then does it matter whether it is evictable.
    """

    def __init__(self, inner: PrefixCache, num_blocks: int) -> None:
        self._inner = inner
        self._num_blocks = num_blocks
        self._policy = inner.eviction_policy()
        self.block_of: dict[BlockKey, int] = {}
        self.num_hits = 0
        self.removed: list[int] = []
        self.is_idle: Callable[[int], bool] = lambda _: True

    @property
    def stores_prefixes(self) -> bool:
        return self._inner.stores_prefixes

    @property
    def shares_in_flight(self) -> bool:
        return self._inner.shares_in_flight

    @property
    def reserves_runs(self) -> bool:
        return self._inner.reserves_runs

    def match(self, keys: Sequence[BlockKey], window_blocks: int | None = None) -> list[int]:
        before = self._state()
        found = list(self._inner.match(keys, window_blocks))
        assert self._state() == before, "match() changed what is indexed or evictable"
        expected = longest_hit([self.block_of.get(key, 0) for key in keys], window_blocks)
        call = f"match() of {len(keys)} keys with window_blocks={window_blocks}"
        assert found == expected, f"{call} returned {found}, indexed are {expected}"
        self.num_hits += any(found)
        return found

    def insert(self, keys: Sequence[BlockKey], index: int, block_id: int) -> bool:
        key, call = keys[index], f"insert() of block {block_id} at index {index}"
        is_taken = self._inner.insert(keys, index, block_id)
        assert isinstance(is_taken, bool), f"{call} returned {is_taken!r}"
        if key in self.block_of:
            assert not is_taken, f"{call} indexed a second block under a key; block {self.block_of[key]} has it"
        if is_taken:
            self.block_of[key] = block_id
        self.compare(call)
        return is_taken

    def remove(self, block_id: int) -> Iterable[int]:
        assert self._inner.is_evictable(block_id), f"block {block_id} is evicted, but not evictable"
        before = self._evictable()
        self.block_of = {key: indexed for key, indexed in self.block_of.items() if indexed != block_id}
        uncovered = list(self._inner.remove(block_id))
        self.removed.append(block_id)
        call = f"remove() of block {block_id}"
        self.compare(call)
        for other in uncovered:
            is_evictable = other in self._inner and self._inner.is_evictable(other)
            assert is_evictable, f"{call} returned {uncovered}, but block {other} is not evictable"
        missed = self._evictable() - before - set(uncovered)
        assert not missed, f"{call} made {missed} evictable, but returned {uncovered}"
        return uncovered

    def is_evictable(self, block_id: int) -> bool:
        return self._inner.is_evictable(block_id)

    def __contains__(self, block_id: object) -> bool:
        return block_id in self._inner

    def __len__(self) -> int:
        return len(self._inner)

    def reservation(self, request: RequestView) -> Reservation:
        return self._inner.reservation(request)

    def eviction_policy(self) -> EvictionPolicy:
        policy = self._inner.eviction_policy()
        assert policy is self._policy, "eviction_policy() returned another object than before"
        return policy

    def compare(self, call: str) -> None:
        """Checks size and membership, and that something can be evicted while anything is idle."""
        indexed = set(self.block_of.values())
        assert len(self._inner) == len(indexed), f"after {call} len() is {len(self._inner)}, indexed are {indexed}"
        members = {block_id for block_id in range(self._num_blocks) if block_id in self._inner}
        assert members == indexed, f"after {call} the index says that it holds {members}, it should hold {indexed}"

    def compare_evictable(self) -> None:
        """Checks that some idle block can be evicted while there is any."""
        idle = {block_id for block_id in self.block_of.values() if self.is_idle(block_id)}
        assert not idle or self._evictable(), f"blocks {idle} are unreferenced, but none of them is evictable"

    def _evictable(self) -> set[int]:
        return {b for b in self.block_of.values() if self.is_idle(b) and self._inner.is_evictable(b)}

    def _state(self) -> tuple[int, list[bool], list[bool]]:
        blocks = range(1, self._num_blocks)
        evictable = [block_id in self._inner and self._inner.is_evictable(block_id) for block_id in blocks]
        return len(self._inner), [block_id in self._inner for block_id in blocks], evictable
