"""Microseconds that a cache and its eviction policy take for one block, by the number of blocks in the pool.

    python benchmarks/cache_operations.py --blocks 1000 10000 100000

Each pool is filled with sequences, which are then found, held and released again, and at last evicted by others. Two
shapes of traffic: `long` is one sequence as long as the pool; `shared` is sequences of 64 blocks, of which each eight
share the first 48. If every operation is O(log n), a tenfold pool costs about the same for each block; what grows are
the misses of the processor's caches. The core's part (states, reference counts, heap) is included, hashing of tokens is
not. The figure is the fastest of several runs.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Callable, Iterator

from tokenloom.interfaces.cache import BlockKey, CacheContext, PrefixCache
from tokenloom.kv.pool import KVPool
from tokenloom.plugins import default_registry
from tokenloom.request import Request
from tokenloom.sampling_params import SamplingParams
from tokenloom.testing.suite import build_choice

CACHES = ("hash", "radix")
EVICTORS = ("lru", "fifo", "lfu", "slru", "priority_ttl")
PHASES = ("publish", "match", "hit", "release", "evict")


def sequences(shape: str, num_blocks: int, name: str) -> list[list[BlockKey]]:
    """Keys of sequences that fill `num_blocks` blocks."""
    if shape == "long":
        return [chain(name, num_blocks)]
    made: list[list[BlockKey]] = []
    num_left = num_blocks
    while num_left > 0:
        prefix = chain(f"{name} {len(made)}", 48)[:num_left]
        num_left -= len(prefix)
        for branch in range(8):
            tail = chain(f"{name} {len(made)} {branch}", 16)[:num_left]
            num_left -= len(tail)
            if tail or not branch:
                made.append(prefix + tail)
    return made


def chain(name: str, length: int) -> list[BlockKey]:
    """Keys of one sequence."""
    keys, parent = list[BlockKey](), name.encode()
    for _ in range(length):
        parent = hashlib.sha256(parent).digest()
        keys.append(parent)
    return keys


def build_cache(cache: str, eviction: str, num_blocks: int) -> PrefixCache:
    """A built-in cache at its defaults but for the eviction policy."""
    registry = default_registry()
    policy = build_choice(registry.get("cache.eviction", eviction).info, {})
    choice = build_choice(registry.get("cache", cache).info, {"eviction": policy})
    built: PrefixCache = choice.build(CacheContext(16, num_blocks, 16 * num_blocks))
    return built


def fill(pool: KVPool, traffic: list[list[BlockKey]], request: Request) -> Iterator[tuple[str, Callable[[], None]]]:
    """Serves each sequence in turn: the calls to time, by phase."""
    for keys in traffic:
        pool.next_tick()
        found = pool.match(keys, None)
        pool.acquire(found, request, 0.0)
        ids = found + pool.allocate(len(keys) - len(found), 0.0)

        def publish(keys: list[BlockKey] = keys, ids: list[int] = ids, first: int = len(found)) -> None:
            for index in range(first, len(keys)):
                pool.publish(keys, index, ids[index], request, 0.0)

        yield "publish", publish
        pool.release(ids, request, 0.0)


def find(pool: KVPool, traffic: list[list[BlockKey]], request: Request) -> Iterator[tuple[str, Callable[[], None]]]:
    """Finds, holds and releases each sequence again."""
    for keys in traffic:
        pool.next_tick()
        ids = pool.cache.match(keys, None)
        assert len(ids) == len(keys), f"{len(ids)} of {len(keys)} blocks are found"
        yield "match", lambda keys=keys: pool.cache.match(keys, None)  # type: ignore[misc]
        yield "hit", lambda ids=ids: pool.acquire(ids, request, 0.0)  # type: ignore[misc]
        yield "release", lambda ids=ids: pool.release(ids, request, 0.0)  # type: ignore[misc]


def measure(cache: str, eviction: str, shape: str, num_blocks: int) -> dict[str, float]:
    """Microseconds per block of each phase."""
    request = Request("r", [1], SamplingParams(max_tokens=1), seed=0, max_total_tokens=2, retention_ttl_s=60.0)
    pool = KVPool(num_blocks + 1, build_cache(cache, eviction, num_blocks + 1))
    traffic = sequences(shape, num_blocks, "first")
    seconds = dict.fromkeys(PHASES, 0.0)
    for phase, call in (pair for part in (fill, find) for pair in part(pool, traffic, request)):
        start = time.perf_counter()
        call()
        seconds[phase] += time.perf_counter() - start
    num_found = sum(len(keys) for keys in traffic)
    start = time.perf_counter()
    ids = pool.allocate(num_blocks, 0.0)
    seconds["evict"] = time.perf_counter() - start
    assert len(pool.cache) == 0, f"{len(pool.cache)} of {len(ids)} blocks are left"
    counts = {phase: num_found if phase in ("match", "hit", "release") else num_blocks for phase in PHASES}
    return {phase: 1e6 * seconds[phase] / counts[phase] for phase in PHASES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--shapes", nargs="+", default=["long", "shared"], choices=["long", "shared"])
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    print("us per block".ljust(32) + "".join(phase.rjust(9) for phase in PHASES))
    for shape in args.shapes:
        for cache in CACHES:
            for eviction in EVICTORS:
                for num_blocks in args.blocks:
                    runs = [measure(cache, eviction, shape, num_blocks) for _ in range(args.repeats)]
                    label = f"{shape:7}{cache:6}{eviction:13}{num_blocks:>7,}"
                    print(label.ljust(33) + "".join(f"{min(run[p] for run in runs):9.2f}" for p in PHASES), flush=True)


if __name__ == "__main__":
    main()
