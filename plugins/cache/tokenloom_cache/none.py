"""No prefix cache: blocks are shared with nobody and free as soon as their request lets go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

from tokenloom.interfaces.cache import (
    BlockKey,
    CacheConfig,
    CacheContext,
    EvictionPolicy,
    PrefixCache,
    Reservation,
)
from tokenloom.request import RequestView
from tokenloom_cache.nothing_to_evict import NothingToEvict

__all__ = ["NoneCache", "NoneConfig"]


class NoneConfig(CacheConfig):
    """Only the settings that every cache has."""

    def build(self, context: CacheContext) -> PrefixCache:
        return NoneCache()


@final
class NoneCache(PrefixCache):
    """Indexes nothing."""

    def __init__(self) -> None:
        self._policy = NothingToEvict()

    @property
    def stores_prefixes(self) -> bool:
        return False

    def match(self, keys: Sequence[BlockKey], window_blocks: int | None = None) -> list[int]:
        return []

    def insert(self, keys: Sequence[BlockKey], index: int, block_id: int) -> bool:
        return False

    def remove(self, block_id: int) -> Iterable[int]:
        raise AssertionError(f"block {block_id} was never indexed")

    def is_evictable(self, block_id: int) -> bool:
        return False

    def __contains__(self, block_id: object) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    def reservation(self, request: RequestView) -> Reservation:
        return Reservation()

    def eviction_policy(self) -> EvictionPolicy:
        return self._policy
