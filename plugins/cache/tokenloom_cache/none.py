"""No prefix cache: blocks are shared with nobody and free as soon as their request lets go."""

from __future__ import annotations

from typing import final

from tokenloom.interfaces.cache import CacheConfig, CacheContext, PrefixCache, Reservation
from tokenloom.request import RequestView
from tokenloom_cache.empty_index import EmptyIndex

__all__ = ["NoneCache", "NoneConfig"]


class NoneConfig(CacheConfig):
    """Only the settings that every cache has."""

    def build(self, context: CacheContext) -> PrefixCache:
        return NoneCache()


@final
class NoneCache(EmptyIndex):
    """Indexes nothing, and lets requests grow block by block."""

    def reservation(self, request: RequestView) -> Reservation:
        return Reservation()
