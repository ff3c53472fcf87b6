"""A pool that serves sequences one after the other, and says what each of them found."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, final

from tokenloom.interfaces.cache import BlockKey, CacheContext, PrefixCache
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.kv.pool import KVPool
from tokenloom.plugins import default_registry
from tokenloom.testing.stub_model import stub_request
from tokenloom.testing.suite import build_choice


def build_cache(cache: str, eviction: str, num_blocks: int, settings: dict[str, object] | None = None) -> PrefixCache:
    registry = default_registry()
    policy: PluginChoice = build_choice(registry.get("cache.eviction", eviction).info, settings or {})
    choice = build_choice(registry.get("cache", cache).info, {"eviction": policy})
    built = choice.build(CacheContext(4, num_blocks, 4_096))
    assert isinstance(built, PrefixCache)
    return built


def chain(letters: Sequence[object]) -> list[BlockKey]:
    """Keys of a sequence whose blocks hold these letters."""
    keys, parent = [], b""
    for letter in letters:
        parent = hashlib.sha256(parent + repr(letter).encode()).digest()
        keys.append(parent)
    return keys


@final
class ServedPool:
    """Each call of `serve` is a commit of its own, one second after the one before.

    Attributes:
        keys_to: the keys that lead to a block, its own included.
    """

    def __init__(self, cache: PrefixCache, num_blocks: int) -> None:
        self.pool = KVPool(num_blocks, cache)
        self.now_s = 0.0
        self.keys_to: dict[int, list[BlockKey]] = {}

    def hold(self, letters: Sequence[object], **fields: Any) -> tuple[int, list[int]]:
        """A request finds what it can, computes and publishes the rest; returns the number of hits and its blocks."""
        self.now_s += 1.0
        self.pool.next_tick()
        keys, request = chain(letters), stub_request("r", [1], **fields)
        found = self.pool.match(keys, None)
        self.pool.acquire(found, request, self.now_s)
        assert self.pool.num_available >= len(keys) - len(found)
        ids = found + self.pool.allocate(len(keys) - len(found), self.now_s)
        for index in range(len(found), len(keys)):
            self.pool.publish(keys, index, ids[index], request, self.now_s)
            self.keys_to[ids[index]] = keys[: index + 1]
        self.pool.check()
        return len(found), ids

    def let_go(self, ids: Sequence[int], **fields: Any) -> None:
        self.pool.release(ids, stub_request("r", [1], **fields), self.now_s)
        self.pool.check()

    def serve(self, letters: Sequence[object], **fields: Any) -> int:
        """A request that comes and goes; returns how many of its blocks were found."""
        num_hits, ids = self.hold(letters, **fields)
        self.let_go(ids, **fields)
        return num_hits


def hits_of(trace: str, cache: str, eviction: str, num_usable: int, **settings: object) -> str:
    """Serves one-block sequences, a letter each: "+" for a hit, "." for a miss."""
    served = ServedPool(build_cache(cache, eviction, num_usable + 1, settings), num_usable + 1)
    return "".join("+" if served.serve(letter) else "." for letter in trace)
