"""Two prefix caches that are right, a flat one and a tree, and the same with one bug planted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, final

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
from tokenloom.interfaces.contract import Capabilities, PluginChoice, PluginInfo
from tokenloom.request import RequestView

__all__ = ["FlatBug", "FlatConfig", "TreeBug", "TreeConfig", "cache_info"]

FlatBug = Literal[
    "none",
    "past_a_gap",
    "window_one_short",
    "window_ids_beyond",
    "forgets_no_key",
    "leaks_a_block",
    "indexes_twice",
    "key_stays_taken",
    "match_records",
    "match_pins",
    "counts_offers",
    "short_keys",
    "depth_for_a_key",
    "takes_nothing",
    "pins_the_deep",
    "stores_in_spite",
    "keeps_every_key",
    "evicts_by_key",
    "asks_for_a_run",
    "matches_twenty",
    "refuses_the_deep",
    "compares_eight_bytes",
]

TreeBug = Literal["none", "hides_the_parent", "drops_the_subtree", "knows_no_holders"]


def cache_info(name: Literal["flat", "tree"], *flags: str) -> PluginInfo:
    """The declaration of a cache below, with flags."""
    target = f"tests.testing.planted_cache:{name.capitalize()}Config"
    capabilities = Capabilities(flags=frozenset(flags))
    return PluginInfo("cache", f"planted_{name}", target, (1, 0), "", capabilities, {"cache.eviction": "lru"})


class FlatConfig(CacheConfig):
    """Settings of the flat cache."""

    bug: FlatBug = "none"
    eviction: PluginChoice

    def build(self, context: CacheContext) -> PrefixCache:
        return Flat(self.bug, self.eviction.build(context))


@final
class Flat(PrefixCache):
    """Two dictionaries."""

    def __init__(self, bug: FlatBug, policy: EvictionPolicy) -> None:
        self._bug = bug
        self._policy = ByKey(self) if bug == "evicts_by_key" else policy
        self._block_of: dict[object, int] = {}
        self._key_of: dict[int, object] = {}
        self._seen: list[object] = []
        self._pinned: set[int] = set()
        self._num_offers = 0

    def name(self, keys: Sequence[BlockKey], index: int) -> object:
        if self._bug == "short_keys":
            return keys[index][:1]
        if self._bug == "compares_eight_bytes":
            return keys[index][:8]
        return index if self._bug == "depth_for_a_key" else keys[index]

    def bytes_of(self, block_id: int) -> bytes:
        key = self._key_of[block_id]
        assert isinstance(key, bytes), f"{key!r}"
        return key

    @property
    def stores_prefixes(self) -> bool:
        return self._bug != "stores_in_spite"

    def match(self, keys: Sequence[BlockKey], window_blocks: int | None = None) -> list[int]:
        if self._bug == "match_records":
            self._seen.append(tuple(keys))
        if self._bug == "matches_twenty":
            keys = keys[:20]
        found = [self._block_of.get(self.name(keys, index), 0) for index in range(len(keys))]
        if self._bug == "match_pins":
            self._pinned.update(found[:1])
        for length in range(len(keys), 0, -1):
            reach = length if window_blocks is None else min(length, window_blocks)
            if self._bug == "window_one_short" and window_blocks:
                reach = max(1, reach - 1)
            if self._bug == "past_a_gap" and window_blocks is None and found[length - 1]:
                return found[:length]
            if all(found[length - reach : length]):
                beyond = found if self._bug == "window_ids_beyond" else [0] * length
                return beyond[: length - reach] + found[length - reach : length]
        return []

    def insert(self, keys: Sequence[BlockKey], index: int, block_id: int) -> bool:
        self._num_offers += 1
        name = self.name(keys, index)
        if self._bug == "refuses_the_deep" and index >= 32:
            return False
        if self._bug == "takes_nothing" or (name in self._block_of and self._bug != "indexes_twice"):
            return False
        if self._bug == "key_stays_taken" and name in self._seen:
            return False
        if self._bug in ("keeps_every_key", "key_stays_taken"):
            self._seen.append(name)
        if self._bug == "pins_the_deep" and index > 1:
            self._pinned.add(block_id)
        self._block_of[name] = block_id
        self._key_of[block_id] = name
        return True

    def remove(self, block_id: int) -> Iterable[int]:
        name = self._key_of[block_id] if self._bug == "leaks_a_block" else self._key_of.pop(block_id)
        if self._bug != "forgets_no_key":
            self._block_of.pop(name, None)
        self._pinned.discard(block_id)
        return ()

    def is_evictable(self, block_id: int) -> bool:
        return block_id in self._key_of and block_id not in self._pinned

    def __contains__(self, block_id: object) -> bool:
        return block_id in self._key_of

    def __len__(self) -> int:
        return self._num_offers if self._bug == "counts_offers" else len(self._key_of)

    def reservation(self, request: RequestView) -> Reservation:
        return Reservation(contiguous=self._bug == "asks_for_a_run")

    def eviction_policy(self) -> EvictionPolicy:
        return self._policy


@final
class ByKey(EvictionPolicy):
    """Orders blocks by their key's bytes: another order for equal tokens of another model."""

    def __init__(self, cache: Flat) -> None:
        self._cache = cache

    def on_touch(self, touch: Touch) -> Iterable[tuple[int, EvictionKey]]:
        return [(touch.block_id, (float(int.from_bytes(self._cache.bytes_of(touch.block_id)[:6])),))]

    def on_remove(self, block_id: int) -> None:
        pass


class TreeConfig(CacheConfig):
    """Settings of the tree."""

    bug: TreeBug = "none"
    eviction: PluginChoice

    def build(self, context: CacheContext) -> PrefixCache:
        return Tree(self.bug, self.eviction.build(context))


@final
class Tree(PrefixCache):
    """Evicts leaves only, as a radix tree does. A node whose children are all held counts as a leaf."""

    def __init__(self, bug: TreeBug, policy: EvictionPolicy) -> None:
        self._bug = bug
        self._block_of: dict[BlockKey, int] = {}
        self._key_of: dict[int, BlockKey] = {}
        self._parent: dict[int, int] = {}
        self._children: dict[int, dict[int, None]] = {}
        self._policy = Holders(self, policy)

    @property
    def stores_prefixes(self) -> bool:
        return True

    def match(self, keys: Sequence[BlockKey], window_blocks: int | None = None) -> list[int]:
        best, run, found = 0, 0, [self._block_of.get(key, 0) for key in keys]
        for index, block_id in enumerate(found):
            run = run + 1 if block_id else 0
            if run == index + 1 or (window_blocks is not None and run >= window_blocks):
                best = index + 1
        first = 0 if window_blocks is None else max(0, best - window_blocks)
        return [0] * first + found[first:best]

    def insert(self, keys: Sequence[BlockKey], index: int, block_id: int) -> bool:
        if keys[index] in self._block_of:
            return False
        self._block_of[keys[index]] = block_id
        self._key_of[block_id] = keys[index]
        self._children[block_id] = {}
        parent = self._block_of.get(keys[index - 1]) if index else None
        if parent is not None:
            self._parent[block_id] = parent
            self._children[parent][block_id] = None
        self._policy.expect(block_id)
        return True

    def remove(self, block_id: int) -> Iterable[int]:
        for child in list(self._children[block_id]):
            if self._bug == "drops_the_subtree":
                self.remove(child)
            self._parent.pop(child, None)
        del self._block_of[self._key_of.pop(block_id)], self._children[block_id]
        parent = self._parent.pop(block_id, None)
        if parent is None:
            return ()
        del self._children[parent][block_id]
        return [parent] if self.is_evictable(parent) and self._bug != "hides_the_parent" else ()

    def is_evictable(self, block_id: int) -> bool:
        if self._bug == "drops_the_subtree":
            return block_id in self._key_of
        held = set() if self._bug == "knows_no_holders" else self._policy.held
        return block_id in self._key_of and all(child in held for child in self._children[block_id])

    def parent(self, block_id: int) -> int | None:
        return self._parent.get(block_id)

    def __contains__(self, block_id: object) -> bool:
        return block_id in self._key_of

    def __len__(self) -> int:
        return len(self._key_of)

    def reservation(self, request: RequestView) -> Reservation:
        return Reservation()

    def eviction_policy(self) -> EvictionPolicy:
        return self._policy


@final
class Holders(EvictionPolicy):
    """Another policy, watched: a block is held from its publication or a hit until it is released."""

    def __init__(self, tree: Tree, inner: EvictionPolicy) -> None:
        self._tree = tree
        self._inner = inner
        self._expected: set[int] = set()
        self._keys: dict[int, EvictionKey] = {}
        self.held: set[int] = set()

    def expect(self, block_id: int) -> None:
        """The next touch of this block is its publication."""
        self._expected.add(block_id)

    def on_touch(self, touch: Touch) -> Iterable[tuple[int, EvictionKey]]:
        is_published = touch.block_id in self._expected
        self._expected.discard(touch.block_id)
        if is_published or touch.is_hit:
            self.held.add(touch.block_id)
        else:
            self.held.discard(touch.block_id)
        changed = dict(self._inner.on_touch(touch))
        self._keys.update(changed)
        parent = self._tree.parent(touch.block_id)
        if parent is not None and parent in self._keys:
            # With this child held, the parent may have become a leaf.
            changed.setdefault(parent, self._keys[parent])
        return list(changed.items())

    def on_remove(self, block_id: int) -> None:
        self._inner.on_remove(block_id)
        self.held.discard(block_id)
        self._expected.discard(block_id)
        self._keys.pop(block_id, None)

    def refresh(self, now_s: float) -> Iterable[tuple[int, EvictionKey]]:
        changed = dict(self._inner.refresh(now_s))
        self._keys.update(changed)
        return list(changed.items())
