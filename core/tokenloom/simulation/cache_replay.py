"""Replays a trace of block chains through a prefix cache alone: no engine, no time, one request after the other.

Each id is one block reference. A request's hits are its leading ids that are present (none past a gap). Then all its
ids are inserted, the head of the chain counting as more recent than its tail, and the cache is trimmed to its capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from tokenloom.interfaces.cache import BlockKey, CacheConfig, CacheContext
from tokenloom.kv.block_pool import BlockState
from tokenloom.kv.pool import KVPool
from tokenloom.request import Request
from tokenloom.sampling_params import SamplingParams
from tokenloom.simulation.trace_files import BlockChain

__all__ = ["CacheReplay", "CacheReplayResult", "replay_cache"]


@dataclass(frozen=True, slots=True)
class CacheReplayResult:
    """What came of a replay.

    Attributes:
        num_requests, num_references, num_hits: of the trace.
        num_distinct: different ids in it; with endless memory, the hit ratio is 1 - num_distinct / num_references.
        num_evicted: blocks evicted.
        num_cached: blocks in the cache at the end.
    """

    num_requests: int
    num_references: int
    num_hits: int
    num_distinct: int
    num_evicted: int
    num_cached: int

    @property
    def hit_ratio(self) -> float:
        """Hits / block references."""
        return self.num_hits / self.num_references if self.num_references else 0.0


@final
class CacheReplay:
    """A KV pool with the real index and eviction policy, and no engine around it.

    While a request is served its blocks may exceed the capacity, for the cache is trimmed afterwards; so the pool is
    larger by the longest chain. Blocks of ballast fill the difference: they are let go while a request is served, as
    many as it lacks, and taken back after it, which evicts exactly what exceeds the capacity.
    """

    def __init__(
        self,
        config: CacheConfig,
        num_blocks: int,
        longest_chain: int,
        plugin: str = "cache",
        *,
        num_distinct: int | None = None,
    ) -> None:
        """What is to be served.

        Args:
            config: of the cache.
            num_blocks: capacity, the null block included.
            longest_chain: most ids of a request.
            plugin: names the cache in errors.
            num_distinct: different ids of all requests together, if known: an ample cache then takes no more memory
                than they need.
        """
        # The cache is told its capacity, not the size of the pool: policies divide it up.
        cache = config.build(CacheContext(config.block_size, num_blocks, longest_chain * config.block_size + 1))
        most = num_blocks if num_distinct is None else min(num_blocks, max(2, num_distinct + 1))
        self._pool = KVPool(most + longest_chain, cache, plugin)
        self._request = Request("replay", [0], SamplingParams(), seed=0, max_total_tokens=1)
        self._ballast = self._pool.allocate(longest_chain, 0.0)
        self._block_of: dict[int, int] = {}
        self._id_in: dict[int, int] = {}

    def serve(self, block_ids: Sequence[int], now_s: float) -> int:
        """Serves one request; returns its hits. An id stands for all before it: it follows the same one everywhere."""
        pool, request = self._pool, self._request
        pool.next_tick()
        keys = [_key(block_id) for block_id in block_ids]
        found = pool.match(keys, None)
        held = list(found) + [self._present(block_id) for block_id in block_ids[len(found) :]]
        # What is present behind a gap is no hit, but it is used again.
        pool.acquire(held, request, now_s)
        missing = dict.fromkeys(block_ids[depth] for depth, block in enumerate(held) if not block)
        for _ in missing:
            pool.release_one(self._ballast.pop(), 0, request, now_s)
        fresh = dict(zip(missing, pool.allocate(len(missing), now_s), strict=True))
        for depth, block_id in enumerate(block_ids):
            if not held[depth] and block_id in fresh:
                held[depth] = fresh.pop(block_id)
                self._insert(keys, depth, block_id, held[depth], now_s)
        pool.release(held, request, now_s)
        self._ballast += pool.allocate(len(missing), now_s)
        return len(found)

    @property
    def num_evicted(self) -> int:
        """Blocks evicted so far."""
        return self._pool.num_evicted

    @property
    def num_cached(self) -> int:
        """Blocks in the cache."""
        return self._pool.blocks.count(BlockState.CACHED)

    def check(self) -> None:
        """Recounts everything. Raises AssertionError."""
        self._pool.check()

    def _present(self, block_id: int) -> int:
        """The block that holds an id, or 0."""
        block = self._block_of.get(block_id, 0)
        return block if block and self._id_in.get(block) == block_id and block in self._pool.cache else 0

    def _insert(self, keys: Sequence[BlockKey], depth: int, block_id: int, block: int, now_s: float) -> None:
        self._pool.publish(keys, depth, block, self._request, now_s)
        self._block_of[block_id] = block
        self._id_in[block] = block_id


def replay_cache(
    config: CacheConfig,
    num_blocks: int,
    chains: Sequence[BlockChain],
    plugin: str,
    progress: Callable[[int], None],
) -> CacheReplayResult:
    """Replays all chains; `progress` is told the number of requests so far."""
    num_distinct = len({block_id for chain in chains for block_id in chain.block_ids})
    longest = max(len(chain.block_ids) for chain in chains)
    replay = CacheReplay(config, num_blocks, longest, plugin, num_distinct=num_distinct)
    num_hits = 0
    for number, chain in enumerate(chains, start=1):
        num_hits += replay.serve(chain.block_ids, chain.arrival_s)
        progress(number)
    return CacheReplayResult(
        num_requests=len(chains),
        num_references=sum(len(chain.block_ids) for chain in chains),
        num_hits=num_hits,
        num_distinct=num_distinct,
        num_evicted=replay.num_evicted,
        num_cached=replay.num_cached,
    )


def _key(block_id: int) -> BlockKey:
    """An id as a block key; the ids of a trace stand for their whole prefix, as keys do."""
    return block_id.to_bytes(32, "little")
