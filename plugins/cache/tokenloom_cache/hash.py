"""A flat index from block keys to block ids. Keys chain, so walking them in order finds the longest prefix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

from pydantic import Field

from tokenloom.interfaces.cache import (
    BlockKey,
    CacheConfig,
    CacheContext,
    EvictionPolicy,
    PrefixCache,
    Reservation,
)
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.request import RequestView

__all__ = ["HashCache", "HashConfig"]


class HashConfig(CacheConfig):
    """Settings of the hash cache."""

    share_in_flight: bool = Field(
        default=True, description="Let requests wait for a block that another one is computing, if they need it next."
    )
    eviction: PluginChoice = Field(description="Which unreferenced block to evict first.")

    def build(self, context: CacheContext) -> PrefixCache:
        return HashCache(self.eviction.build(context), shares_in_flight=self.share_in_flight)


@final
class HashCache(PrefixCache):
    """Every operation is O(1) per block. Any unreferenced block may go: those behind it are then merely unreachable."""

    def __init__(self, policy: EvictionPolicy, *, shares_in_flight: bool = True) -> None:
        self._policy = policy
        self._shares_in_flight = shares_in_flight
        self._block_of: dict[BlockKey, int] = {}
        self._key_of: dict[int, BlockKey] = {}

    @property
    def stores_prefixes(self) -> bool:
        return True

    @property
    def shares_in_flight(self) -> bool:
        return self._shares_in_flight

    def match(self, keys: Sequence[BlockKey], window_blocks: int | None = None) -> list[int]:
        block_ids: list[int] = []
        best, run = 0, 0
        for index, key in enumerate(keys):
            block_id = self._block_of.get(key)
            if block_id is None and window_blocks is None:
                break
            block_ids.append(0 if block_id is None else block_id)
            run = 0 if block_id is None else run + 1
            if window_blocks is None or run >= min(index + 1, window_blocks):
                best = index + 1
        first = 0 if window_blocks is None else max(0, best - window_blocks)
        return [0] * first + block_ids[first:best]

    def insert(self, keys: Sequence[BlockKey], index: int, block_id: int) -> bool:
        key = keys[index]
        if key in self._block_of:
            return False
        self._block_of[key] = block_id
        self._key_of[block_id] = key
        return True

    def remove(self, block_id: int) -> Iterable[int]:
        del self._block_of[self._key_of.pop(block_id)]
        return ()

    def is_evictable(self, block_id: int) -> bool:
        return block_id in self._key_of

    def __contains__(self, block_id: object) -> bool:
        return block_id in self._key_of

    def __len__(self) -> int:
        return len(self._key_of)

    def reservation(self, request: RequestView) -> Reservation:
        return Reservation()

    def eviction_policy(self) -> EvictionPolicy:
        return self._policy
