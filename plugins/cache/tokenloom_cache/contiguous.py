"""The classical baseline: each request reserves one run of neighbouring blocks of the maximum length when it starts.

What it shows: slots that are reserved and never used (internal fragmentation), and free blocks that lie too far apart
for another run (external fragmentation). `Engine.kv_fragmentation` reports both.

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention" (2023), section
3.1.
"""

from __future__ import annotations

from typing import Literal, final

from pydantic import Field

from tokenloom.interfaces.cache import CacheConfig, CacheContext, PrefixCache, Reservation
from tokenloom.request import RequestView
from tokenloom_cache.empty_index import EmptyIndex

__all__ = ["ContiguousCache", "ContiguousConfig"]


class ContiguousConfig(CacheConfig):
    """Settings of the contiguous cache."""

    reserve: Literal["max_model_len", "max_tokens"] = Field(
        default="max_model_len",
        description="Length of a run: max_model_len is the longest sequence there may be; max_tokens the longest that "
        "the request asks for, so that runs differ.",
    )

    def build(self, context: CacheContext) -> PrefixCache:
        return ContiguousCache(context, self.reserve)


@final
class ContiguousCache(EmptyIndex):
    """Indexes nothing, and reserves everything."""

    def __init__(
        self, context: CacheContext, reserve: Literal["max_model_len", "max_tokens"] = "max_model_len"
    ) -> None:
        super().__init__()
        self._block_size = context.block_size
        self._max_model_len = context.max_model_len
        self._reserves_all = reserve == "max_model_len"

    @property
    def reserves_runs(self) -> bool:
        return True

    def reservation(self, request: RequestView) -> Reservation:
        # The last token's KV is never stored.
        longest = self._max_model_len if self._reserves_all else max(1, request.max_total_tokens - 1)
        return Reservation(-(-longest // self._block_size), contiguous=True)
