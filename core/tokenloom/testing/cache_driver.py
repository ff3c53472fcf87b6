"""Drives a prefix cache as the core does: a real KV manager, and requests that come, compute, leave and come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from tokenloom.clock import VirtualClock
from tokenloom.interfaces.cache import CacheContext, PrefixCache
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.kv.block_pool import BlockState
from tokenloom.kv.manager import KVManager
from tokenloom.request import Request
from tokenloom.scheduling.run_placement import RunPlacement
from tokenloom.testing.stub_model import full_group, stub_request
from tokenloom.testing.watched_cache import WatchedCache

__all__ = ["LAYOUTS", "CacheDriver"]

LAYOUTS: Mapping[str, tuple[tuple[int, ...], tuple[KVGroupSpec, ...]]] = {
    "full": ((8,), (full_group(),)),
    "window": ((8,), (full_group(0, window=3),)),
    "narrow_window": ((8,), (full_group(0, window=1), full_group(1, window=4))),
    "shared_pool": ((12,), (full_group(), full_group(1, window=4))),
    "own_pools": ((8, 6), (full_group(), full_group(1, window=3, pool_id=1))),
    "drafter": ((12,), (full_group(), full_group(1, lookahead=1, is_drafter=True))),
    "far_drafter": ((8, 9), (full_group(), full_group(1, lookahead=3, pool_id=1))),
}
"""Blocks of each pool, and the KV groups that live in them; windows and lookaheads are made for blocks of 2 tokens."""


@dataclass(slots=True)
class _Live:
    request: Request
    is_running: bool = False


@final
class CacheDriver:
    """One layout's memory under the cache under test.

    Attributes:
        watched: the cache of each pool.
    """

    def __init__(
        self, layout: str, build: Callable[[CacheContext], PrefixCache], block_size: int, block_root: bytes = b"root"
    ) -> None:
        """`block_size` is 2 or a multiple; tokens and windows are stretched to fit it."""
        num_blocks, groups = LAYOUTS[layout]
        self._scale = block_size // 2
        self.watched: list[WatchedCache] = []
        self._live: dict[str, _Live] = {}
        self._num_arrived = 0
        self.clock = VirtualClock()

        def build_watched(count: int) -> PrefixCache:
            self.watched.append(WatchedCache(build(CacheContext(block_size, count, 64 * self._scale)), count))
            return self.watched[-1]

        self.kv = KVManager(
            [_stretched(group, self._scale) for group in groups],
            num_blocks,
            block_size,
            block_root,
            build_watched,
            self.clock,
            "under test",
        )
        for pool, watched in zip(self.kv.pools, self.watched, strict=True):
            watched.is_idle = lambda b, blocks=pool.blocks: blocks.state(b) is BlockState.CACHED  # type: ignore[misc]

    def count(self, *, is_running: bool) -> int:
        """Requests that run, or that wait."""
        return sum(live.is_running == is_running for live in self._live.values())

    def arrive(self, tokens: Sequence[int], salt: str = "") -> None:
        """A new request waits."""
        name = f"r{self._num_arrived}"
        self._num_arrived += 1
        stretched = [token for token in tokens for _ in range(self._scale)]
        self._live[name] = _Live(stub_request(name, stretched, cache_salt=salt))

    def admit(self, pick: int = -1) -> int:
        """Gives a waiting request what the cache holds of it, if memory suffices; returns the tokens found."""
        live = self._choose(pick, is_running=False)
        if live is None:
            return 0
        self._next_commit()
        match = self.kv.match(live.request)
        num_reserved = self.kv.reserved_blocks(live.request) * self.kv.block_size
        if num_reserved and not self._has_room(live.request, max(num_reserved, match.num_tokens)):
            return 0
        starts: tuple[int, ...] | None = ()
        if num_reserved and self.kv.reservation(live.request).contiguous:
            starts = RunPlacement.of(self.kv).place(num_reserved // self.kv.block_size)
        if starts is None:
            return 0
        self.kv.admit(live.request, match)
        self.kv.place(live.request, starts)
        live.request.num_computed_tokens = match.num_tokens
        live.is_running = True
        if num_reserved:
            self.kv.grow(live.request, max(num_reserved, match.num_tokens))
        return match.num_tokens

    def compute(self, pick: int, count: int, num_drafts: int = 0, token: int = 0) -> None:
        """One step: `count` tokens, drafts that are all rejected, and one more token once the prompt is through."""
        live = self._choose(pick, is_running=True)
        if live is None:
            return
        request = live.request
        count = min(count * self._scale, request.num_tokens - request.num_computed_tokens)
        is_last = request.num_computed_tokens + count == request.num_tokens
        num_slots = request.num_computed_tokens + count + (num_drafts if is_last else 0)
        if not self._has_room(request, num_slots):
            return
        self._next_commit()
        self.kv.grow(request, num_slots)
        request.num_computed_tokens += count
        if is_last:
            request.output_token_ids.append(token)
        self._next_commit()
        self.kv.publish(request)

    def let_go(self, pick: int, *, is_final: bool) -> None:
        """Ends or preempts a running request."""
        live = self._choose(pick, is_running=True)
        if live is None:
            return
        self._next_commit()
        self.kv.release(live.request, is_final=is_final)
        live.is_running = False
        live.request.num_computed_tokens = 0
        if is_final:
            del self._live[live.request.request_id]

    def abort_waiting(self, pick: int) -> None:
        """Ends a waiting request."""
        live = self._choose(pick, is_running=False)
        if live is not None:
            self.kv.release(live.request, is_final=True)
            del self._live[live.request.request_id]

    def reset(self) -> None:
        """Evicts everything that nobody holds: it must all be evictable, in some order."""
        num_cached = self.kv.usage()["cached"]
        num_evicted = self.kv.reset_prefix_cache()
        assert num_evicted == num_cached, f"{num_evicted} of {num_cached} unreferenced blocks were evicted"

    def check(self) -> None:
        """What holds after every operation."""
        self.kv.check()
        for watched in self.watched:
            watched.compare("the last operation")
            watched.compare_evictable()

    def _next_commit(self) -> None:
        self.kv.next_tick()
        self.clock.advance(1.0)

    def _has_room(self, request: Request, num_slots: int) -> bool:
        needed = [0] * len(self.kv.pools)
        holds = self._live[request.request_id].is_running
        for group, pool in enumerate(self.kv.pool_of_group):
            owned = len(self.kv.tables(request.request_id)[group]) if holds else 0
            needed[pool] += max(0, -(-num_slots // self.kv.block_size) - owned)
        return all(count <= pool.num_available for count, pool in zip(needed, self.kv.pools, strict=True))

    def _choose(self, pick: int, *, is_running: bool) -> _Live | None:
        chosen = [live for live in self._live.values() if live.is_running == is_running]
        return chosen[pick % len(chosen)] if chosen else None


def _stretched(group: KVGroupSpec, scale: int) -> KVGroupSpec:
    window = None if group.window is None else group.window * scale
    return full_group(
        group.group_id,
        window=window,
        pool_id=group.pool_id,
        lookahead=group.lookahead,
        is_drafter=group.is_drafter,
    )
