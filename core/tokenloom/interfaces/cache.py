"""Contracts `cache` 1.1 (which computed blocks can be found again) and `cache.eviction` 1.0 (which one goes first).

The core owns blocks, reference counts and keys. A prefix cache is an index from block keys to block ids; an eviction
policy orders the unreferenced ones. Neither allocates or frees anything.

A block key is a digest over everything the block's content depends on: its KV group, all token ids from the start of
the sequence to the block's end (and, in a group with lookahead, the next tokens), weights, quantization, layout and
salt. Equal keys mean equal content, so an index never compares tokens.

The core builds one cache, with its eviction policy, for each pool; block ids are ids of that pool. KV groups of equal
page size share a pool, and their blocks meet in one index under different keys.

Version 1.1 adds `PrefixCache.shares_in_flight` and `PrefixCache.reserves_runs`, which default to what 1.0 did.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from tokenloom.interfaces.contract import CONTRACT_VERSIONS, PluginConfig
from tokenloom.request import RequestView
from tokenloom.unguarded import unguarded

__all__ = [
    "CONTRACT_VERSION",
    "EVICTION_CONTRACT_VERSION",
    "BlockKey",
    "CacheConfig",
    "CacheContext",
    "EvictionConfig",
    "EvictionKey",
    "EvictionPolicy",
    "PrefixCache",
    "Reservation",
    "Touch",
]

CONTRACT_VERSION = CONTRACT_VERSIONS["cache"]
EVICTION_CONTRACT_VERSION = CONTRACT_VERSIONS["cache.eviction"]

BlockKey = bytes
"""32 bytes, SHA-256 (see `tokenloom.kv.block_hash`). The same tokens in two KV groups have two keys."""

EvictionKey = tuple[float, ...]
"""Orders evictable blocks; the smallest goes first. Compared as tuples, so all keys of a policy have one length."""


@dataclass(frozen=True, slots=True)
class CacheContext:
    """What a cache knows when it is built.

    Attributes:
        block_size: tokens per block.
        num_blocks: blocks of this index's pool, the null block included; known ids are 1..num_blocks-1.
        max_model_len: longest sequence, in tokens.
    """

    block_size: int
    num_blocks: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """How much memory a request takes when it is admitted.

    Attributes:
        num_blocks: least number of blocks to hold from admission on, per KV group; 0 grows with the sequence.
        contiguous: whether they must be one run of block ids, in each KV group; only from a cache that
            `reserves_runs`. Such a request waits until a run is free that is long enough.
    """

    num_blocks: int = 0
    contiguous: bool = False


class CacheConfig(PluginConfig):
    """Base of cache Configs: the KV memory settings that the core reads whatever the plugin."""

    block_size: Annotated[int, Field(ge=1, le=1024)] = Field(default=16, description="Tokens per KV block.")
    # Block tables are int32.
    num_blocks: Annotated[int, Field(ge=2, lt=2**31)] | None = Field(
        default=None, description="KV blocks to allocate, the null block included; null sizes them by memory_fraction."
    )
    memory_fraction: Annotated[float, Field(gt=0.0, le=0.98)] = Field(
        default=0.3, description="Share of the memory free after loading weights that the KV cache may take."
    )
    host_memory_bytes: Annotated[int, Field(ge=0)] = Field(
        default=4 * 2**30, description="Most host memory for KV of swapped requests; it is taken when it is needed."
    )

    @abstractmethod
    def build(self, context: CacheContext) -> PrefixCache: ...


class PrefixCache(ABC):
    """An index from block keys to block ids.

    The core calls, for one block: `insert` once its tokens are computed, then any number of `match`, then `remove` when
    it is evicted. `match` is called from scheduling and never mutates.

    Every indexed block that no request references must be evictable in some order, whatever blocks are referenced: when
    `is_evictable` says no for one, removing other *unreferenced* blocks makes it so, and that `remove` returns it. (A
    window group lets go of the blocks before its window while it still holds those behind.)
    """

    @property
    @abstractmethod
    def stores_prefixes(self) -> bool:
        """False for a cache that never finds anything again: the core then skips hashing."""

    @property
    def shares_in_flight(self) -> bool:
        """Whether a waiting request should wait while another one computes the next block that both need.

        The core sees to it, step by step: who arrives together and shares a prefix computes it once. False starts
        everybody at once. Only read if `stores_prefixes`; True by default.
        """
        return True

    @property
    def reserves_runs(self) -> bool:
        """Whether reservations may ask for one run of block ids; only without prefixes. False by default.

        The pool then keeps its free blocks in runs, and a window's blocks stay in their run until the request ends.
        """
        return False

    @abstractmethod
    def match(self, keys: Sequence[BlockKey], window_blocks: int | None = None) -> list[int]:
        """Finds the longest usable prefix.

        Args:
            keys: the keys of a sequence's full blocks in one KV group, from its start, each covering all before it.
            window_blocks: how many blocks back the group looks; None for all of them.

        Returns:
            The longest m such that the last min(m, window_blocks) of keys[:m] are indexed, as m block ids; ids that
            the window does not reach are 0. Without a window: the ids up to the first key that is not indexed (a hit
            stops at a gap).
        """

    @abstractmethod
    def insert(self, keys: Sequence[BlockKey], index: int, block_id: int) -> bool:
        """Indexes a computed block under keys[index]; keys[:index] are the blocks before it in its sequence.

        Those before it need not be indexed themselves (they may have left the window, or been evicted).

        Returns:
            True if the block is now indexed. False if the key is indexed already (the block then stays private to its
            request) or the cache does not want it.
        """

    @abstractmethod
    def remove(self, block_id: int) -> Iterable[int]:
        """Forgets an indexed block, because it is evicted or its content is about to change.

        Returns:
            Ids of indexed blocks that became evictable by this (a radix tree returns the new leaf), else nothing.
        """

    @abstractmethod
    def is_evictable(self, block_id: int) -> bool:
        """Whether an indexed, unreferenced block may be evicted now."""

    @abstractmethod
    def __contains__(self, block_id: object) -> bool:
        """Whether a block id is indexed."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of indexed blocks."""

    @abstractmethod
    def reservation(self, request: RequestView) -> Reservation:
        """How much memory `request` takes at admission; `Reservation()` for paged growth."""

    @abstractmethod
    def eviction_policy(self) -> EvictionPolicy:
        """The policy that orders this index's unreferenced blocks; always the same object."""


@unguarded
@dataclass(frozen=True, slots=True)
class Touch:
    """One use of an indexed block.

    Attributes:
        block_id: the block.
        tick: core counter, larger for later commits; equal for blocks touched by one commit. Deterministic.
        now_s: the clock, seconds.
        depth: index of the block in its sequence; deeper blocks are worth less.
        is_hit: True when a request found the block, False when it was published or released.
        retention_priority: from the request; larger is kept longer. 0 by default.
        retention_ttl_s: how long that priority holds, seconds; None for ever.
    """

    block_id: int
    tick: int
    now_s: float
    depth: int
    is_hit: bool
    retention_priority: int = 0
    retention_ttl_s: float | None = None


class EvictionConfig(PluginConfig):
    """Base of eviction Configs. `build` takes a `CacheContext`."""

    @abstractmethod
    def build(self, context: CacheContext) -> EvictionPolicy: ...


class EvictionPolicy(ABC):
    """Orders evictable blocks. The core keeps the heap; the policy only says keys."""

    @abstractmethod
    def on_touch(self, touch: Touch) -> Iterable[tuple[int, EvictionKey]]:
        """Records a use.

        Returns:
            (block_id, key) of every block whose key changed, the touched one included.
        """

    @abstractmethod
    def on_remove(self, block_id: int) -> None:
        """Forgets a block that is no longer indexed."""

    def refresh(self, now_s: float) -> Iterable[tuple[int, EvictionKey]]:  # noqa: ARG002
        """Blocks whose key changed by the passing of time alone; called before a victim is chosen. None by default."""
        return ()
