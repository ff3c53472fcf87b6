"""What every prefix cache must keep as an index: which blocks it finds under which keys."""

from __future__ import annotations

import hashlib
import random

import pytest

from tokenloom.interfaces.cache import BlockKey, CacheContext, PrefixCache
from tokenloom.testing.suite import PluginSuite
from tokenloom.testing.watched_cache import WatchedCache

__all__ = ["NUM_BLOCKS", "CacheIndexSuite", "keys_of"]

NUM_BLOCKS = 32
NUM_KEYS = 400
FLIPS = (0x01, 0x80)
"""Which bit of a byte to change."""


class CacheIndexSuite(PluginSuite):
    """The part of `CacheSuite` that calls the index alone, beside a dictionary."""

    kind = "cache"

    def test_a_computed_prefix_is_found_again(self) -> None:
        """The blocks of a sequence were offered from its start, and `match` did not find those that were taken.

        The first one offered to an empty index must be taken. `match` returns one id for each leading key that is
        indexed, whatever keys follow.
        """
        index, keys = self.index(), keys_of("a", 6)
        assert index.match(keys) == [], "an empty index finds nothing"
        assert index.match([]) == [], "no keys, no blocks"
        assert index.insert(keys, 0, 10), "an empty index did not take a block"
        for depth in range(1, 6):
            index.insert(keys, depth, 10 + depth)
        for length in range(7):
            index.match(keys[:length])
            index.match([*keys[:length], *keys_of("b", 3)])

    def test_a_hit_stops_at_the_first_gap(self) -> None:
        """One block of a sequence was evicted, or never offered, and `match` went on behind it or stopped before.

        Blocks behind a gap may stay indexed, but without a window they are no hit.
        """
        keys = keys_of("a", 5)
        for gap in range(5):
            index = self.index()
            for depth in range(5):
                if depth != gap:
                    index.insert(keys, depth, 10 + depth)
                    index.match(keys)
        for first in range(5):
            index = self.index()
            for depth in range(5):
                index.insert(keys, depth, 10 + depth)
            for block_id in [10 + (first + offset) % 5 for offset in range(5)] * 5:
                if block_id in index and index.is_evictable(block_id):
                    index.remove(block_id)
                    index.match(keys)
            assert len(index) == 0, f"{len(index)} blocks could not be evicted in any order"

    @pytest.mark.parametrize("window_blocks", [0, 1, 2, 3, 9])
    def test_a_window_needs_only_its_last_blocks(self, window_blocks: int) -> None:
        """`match` with window_blocks did not return the longest prefix of which the last blocks are indexed.

        The ids that the window does not reach are 0, be those blocks indexed or not.
        """
        rng, keys = random.Random(window_blocks), keys_of("a", 8)
        for _ in range(20):
            index = self.index()
            for depth in range(8):
                index.insert(keys, depth, 10 + depth)
            for block_id in rng.sample(range(10, 18), 4):
                if index.is_evictable(block_id):
                    index.remove(block_id)
                for length in range(9):
                    index.match(keys[:length], window_blocks)

    def test_a_key_is_indexed_once(self) -> None:
        """A second block was taken under a key, or it replaced the first, or its key was not free again afterwards."""
        index, keys = self.index(), keys_of("a", 2)
        assert index.insert(keys, 0, 1), "an empty index did not take a block"
        assert not index.insert(keys, 0, 2), "a key was indexed twice"
        assert index.match(keys[:1]) == [1], "the first block under a key is the one that is found"
        index.remove(1)
        assert index.insert(keys, 0, 2), "a key whose block was removed is free again"
        index.match(keys[:1])

    def test_any_key_is_told_from_any_other(self) -> None:
        """A block was found under another key than its own, so that a request would read the KV of other tokens.

        Compare all 32 bytes of a key.
        """
        index = self.index(NUM_KEYS)
        for number in range(1, NUM_KEYS):
            index.insert(keys_of(f"prompt {number}", 1), 0, number)
        for number in range(1, NUM_KEYS + 40):
            index.match(keys_of(f"prompt {number}", 1))

    def test_each_byte_of_a_key_counts(self) -> None:
        """A block was found under a key that differs from its own in a single byte.

        Compare all 32 bytes: a part of a digest is no digest of this strength.
        """
        index, first = self.index(NUM_KEYS), keys_of("prompt", 1)[0]
        index.insert([first], 0, 1)
        flips = [(place, flip) for place in range(32) for flip in FLIPS]
        others = [bytes(byte ^ flip * (at == place) for at, byte in enumerate(first)) for place, flip in flips]
        for other in others:
            index.match([other])
        for number, other in enumerate(others, start=2):
            index.insert([other], 0, number)
        for key in (first, *others):
            index.match([key])

    def test_a_long_sequence_is_found_to_its_end(self) -> None:
        """Of a sequence of 300 blocks in an index with room for more, blocks were refused or not found.

        A cache that does not take every block that it has room for declares the flag selective.
        """
        index, keys = self.index(NUM_KEYS), keys_of("long", 300)
        refused = [depth for depth in range(300) if not index.insert(keys, depth, 1 + depth)]
        assert not refused or "selective" in self.capabilities.flags, f"blocks at the depths {refused} were refused"
        for length in (1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300):
            for window_blocks in (None, 1, 40):
                index.match(keys[:length], window_blocks)

    # ---- machinery ----

    @property
    def block_size(self) -> int:
        """The smallest block size that the kit's layouts and the plugin can both be cut into."""
        multiple = self.capabilities.block_size_multiple
        return multiple if multiple % 2 == 0 else 2 * multiple

    def build(self, context: CacheContext | None = None) -> PrefixCache:
        """The cache under test."""
        context = context or CacheContext(self.block_size, NUM_BLOCKS, 1_024)
        cache = self.make_config(block_size=context.block_size).build(context)
        assert isinstance(cache, PrefixCache), f"build() returned a {type(cache).__name__}, not a PrefixCache"
        return cache

    def index(self, num_blocks: int = NUM_BLOCKS) -> WatchedCache:
        """The cache under test beside a dictionary; skips the test if it stores nothing."""
        cache = self.build(CacheContext(self.block_size, num_blocks, max(1_024, num_blocks * self.block_size)))
        if not cache.stores_prefixes:
            pytest.skip("it stores no prefixes")
        return WatchedCache(cache, num_blocks)


def keys_of(name: str, count: int) -> list[BlockKey]:
    return [hashlib.sha256(f"{name} {index}".encode()).digest() for index in range(count)]
