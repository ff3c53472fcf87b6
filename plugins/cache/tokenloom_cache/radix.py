"""A radix tree over block keys that evicts leaves only, so that cached blocks are not cut off from their prefix.

Hits are those of `hash`: the keys are the same, and both find the longest prefix. What the tree adds:

- A block goes after all idle blocks that directly follow it, whatever the eviction policy says: the policy chooses
  among the tails. Under `hash`, a policy that does not think of tails (`fifo`, `lfu`) may evict the head of a sequence;
  what lies behind it can no longer be found, and takes up memory until it is evicted, too.
- A search passes runs of blocks instead of single ones.
- `shape()` tells how prefixes are shared.

It costs more memory, and more time for each block that is indexed or evicted, than `hash`. With `lru`, which takes
tails first by itself, both evict nearly the same.

Source: Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs" (2024), section 3; here with
whole blocks as letters, and a search that never splits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

from pydantic import Field

from tokenloom.interfaces.cache import (
    BlockKey,
    CacheConfig,
    CacheContext,
    EvictionKey,
    EvictionPolicy,
    PrefixCache,
    Reservation,
    Touch,
)
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.request import RequestView
from tokenloom_cache.radix_tree import RadixTree, TreeShape

__all__ = ["RadixCache", "RadixConfig"]


class RadixConfig(CacheConfig):
    """Settings of the radix cache."""

    share_in_flight: bool = Field(
        default=True, description="Let requests wait for a block that another one is computing, if they need it next."
    )
    eviction: PluginChoice = Field(description="Which of the unreferenced tails to evict first.")

    def build(self, context: CacheContext) -> PrefixCache:
        return RadixCache(self.eviction.build(context), shares_in_flight=self.share_in_flight)


@final
class RadixCache(PrefixCache):
    """A block may go when no idle block follows it directly in any sequence; idle means that no request holds it.

    Who holds a full prefix holds it from the leaf to the root, so then the idle blocks that may go are the leaves of
    the tree. Where an idle block lies before a held one (it left a window, or the holder has a private duplicate of
    it), waiting for that one would keep it for as long as the request runs; there it may go.
    """

    def __init__(self, policy: EvictionPolicy, *, shares_in_flight: bool = True) -> None:
        self._shares_in_flight = shares_in_flight
        self._tree = RadixTree()
        self._idle = _IdleBlocks(self._tree)
        self._policy = _HoldWatch(policy, self._idle)

    @property
    def stores_prefixes(self) -> bool:
        return True

    @property
    def shares_in_flight(self) -> bool:
        return self._shares_in_flight

    def match(self, keys: Sequence[BlockKey], window_blocks: int | None = None) -> list[int]:
        if window_blocks is None:
            return self._tree.prefix(keys)
        length = len(keys)
        while length:
            reach = min(length, window_blocks)
            block_ids = self._tree.run_before(keys, length, reach)
            if len(block_ids) == reach:
                return [0] * (length - reach) + block_ids
            # A prefix that ends behind the gap has it in its window, too.
            length -= len(block_ids) + 1
        return []

    def insert(self, keys: Sequence[BlockKey], index: int, block_id: int) -> bool:
        if self._tree.find(keys[index]) is not None:
            return False
        self._tree.add(keys, index, block_id)
        self._idle.add(block_id)
        return True

    def remove(self, block_id: int) -> Iterable[int]:
        uncovered = self._idle.discard(block_id)
        self._tree.take_out(block_id)
        return uncovered

    def is_evictable(self, block_id: int) -> bool:
        return block_id in self._tree and not self._idle.follow(block_id)

    def __contains__(self, block_id: object) -> bool:
        return block_id in self._tree

    def __len__(self) -> int:
        return len(self._tree)

    def reservation(self, request: RequestView) -> Reservation:
        return Reservation()

    def eviction_policy(self) -> EvictionPolicy:
        return self._policy

    def shape(self) -> TreeShape:
        """How the indexed blocks share prefixes."""
        return self._tree.shape()


@final
class _IdleBlocks:
    """Which blocks of a tree are held by no request, and which of those have such a block right behind. O(1) each.

    A block that was just indexed counts as idle until its publication is reported.
    """

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._held: set[int] = set()
        self._unpublished: set[int] = set()
        # By the key that they follow, which need not be indexed.
        self._num_behind: dict[BlockKey, int] = {}

    def follow(self, block_id: int) -> bool:
        """Whether any idle block directly follows this one."""
        return self._tree.key(block_id) in self._num_behind

    def add(self, block_id: int) -> None:
        """A block was indexed."""
        self._unpublished.add(block_id)
        self._become_idle(block_id)

    def discard(self, block_id: int) -> tuple[int, ...]:
        """A block is about to be forgotten; returns the one before it if that may go now."""
        self._unpublished.discard(block_id)
        if block_id in self._held:
            self._held.remove(block_id)
            return ()
        return self._cease_idle(block_id)

    def touch(self, block_id: int, *, is_hit: bool) -> tuple[int, ...]:
        """A block was used; returns the one before it if that may go now.

        The first use of an indexed block is its publication by a request that holds it; after that a hit takes hold of
        it, and any other use is the release by its last holder.
        """
        if not is_hit and block_id not in self._unpublished:
            if block_id in self._held:
                self._held.remove(block_id)
                self._become_idle(block_id)
            return ()
        self._unpublished.discard(block_id)
        if block_id in self._held:
            return ()
        self._held.add(block_id)
        return self._cease_idle(block_id)

    def _become_idle(self, block_id: int) -> None:
        key = self._tree.parent_key(block_id)
        self._num_behind[key] = self._num_behind.get(key, 0) + 1

    def _cease_idle(self, block_id: int) -> tuple[int, ...]:
        key = self._tree.parent_key(block_id)
        self._num_behind[key] -= 1
        if self._num_behind[key]:
            return ()
        del self._num_behind[key]
        parent_id = self._tree.find(key)
        return () if parent_id is None or parent_id in self._held else (parent_id,)


@final
class _HoldWatch(EvictionPolicy):
    """The chosen policy, with an ear to its touches: they tell which blocks are held."""

    def __init__(self, policy: EvictionPolicy, idle: _IdleBlocks) -> None:
        self._policy = policy
        self._idle = idle
        self._keys: dict[int, EvictionKey] = {}

    def on_touch(self, touch: Touch) -> Iterable[tuple[int, EvictionKey]]:
        changed = self._remember(self._policy.on_touch(touch))
        for block_id in self._idle.touch(touch.block_id, is_hit=touch.is_hit):
            # Stating its key again tells the core that it may go now.
            if block_id in self._keys:
                changed.append((block_id, self._keys[block_id]))
        return changed

    def on_remove(self, block_id: int) -> None:
        self._keys.pop(block_id, None)
        self._policy.on_remove(block_id)

    def refresh(self, now_s: float) -> Iterable[tuple[int, EvictionKey]]:
        return self._remember(self._policy.refresh(now_s))

    def _remember(self, changed: Iterable[tuple[int, EvictionKey]]) -> list[tuple[int, EvictionKey]]:
        known = list(changed)
        self._keys.update(known)
        return known
