"""A KVManager beside a dict model of it, moved in step. Every operation asserts that both agree.

The model keys blocks by the tokens themselves, so that a hit on the wrong content cannot go unseen, and knows which
block must be evicted next. Import it as `from tests.core.kv.modelled_kv import ModelledKV`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from tokenloom.batch import BlockTableUpdate
from tokenloom.clock import VirtualClock
from tokenloom.interfaces.cache import CacheContext
from tokenloom.kv.block_pool import BlockState
from tokenloom.kv.manager import KVManager, PrefixMatch
from tokenloom.request import Request
from tokenloom.testing.cache_driver import LAYOUTS
from tokenloom.testing.engine_harness import build_prefix_cache
from tokenloom.testing.stub_model import stub_request

__all__ = ["ModelledKV"]

BLOCK = 2
Key = tuple[int, str, tuple[int, ...]]
"""(group, salt, all tokens that the block's content depends on)."""


@dataclass
class ModelPool:
    """What one pool should look like."""

    num_blocks: int
    holders: dict[int, int] = field(default_factory=dict)
    index: dict[Key, int] = field(default_factory=dict)
    touched: dict[int, tuple[int, int]] = field(default_factory=dict)

    def indexed(self) -> set[int]:
        return set(self.index.values())

    def cached(self) -> set[int]:
        return {block_id for block_id in self.indexed() if not self.holders.get(block_id)}

    def free(self) -> set[int]:
        held = {block_id for block_id, count in self.holders.items() if count}
        return set(range(1, self.num_blocks)) - held - self.indexed()

    def take(self, block_id: int) -> bool:
        """Checks that this block was the one to allocate; returns whether it was evicted for it."""
        is_evicted = not self.free()
        if is_evicted:
            victim = min(self.cached(), key=lambda b: (*self.touched[b], b))
            assert block_id == victim, f"block {block_id} evicted, {victim} was used least recently"
            self.drop(block_id)
        else:
            assert block_id in self.free(), f"block {block_id} allocated while {self.free()} are free"
        self.holders[block_id] = 1
        return is_evicted

    def drop(self, block_id: int) -> None:
        (key,) = [key for key, indexed in self.index.items() if indexed == block_id]
        del self.index[key]

    def release(self, block_id: int, touch: tuple[int, int]) -> None:
        self.holders[block_id] -= 1
        if not self.holders[block_id] and block_id in self.indexed():
            self.touched[block_id] = touch


@dataclass
class ModelRequest:
    """A live request: block ids per group while it runs, None while it waits."""

    request: Request
    tables: list[list[int]] | None = None
    published: list[int] = field(default_factory=list)


@final
class ModelledKV:
    """Both sides of one layout, and the live requests."""

    def __init__(self, layout: str) -> None:
        num_blocks, self.groups = LAYOUTS[layout]
        self.kv = KVManager(
            self.groups,
            num_blocks,
            BLOCK,
            b"root",
            lambda count: build_prefix_cache("hash", CacheContext(BLOCK, count, 64)),
            VirtualClock(),
        )
        self.pools = [ModelPool(count) for count in num_blocks]
        self.live: dict[str, ModelRequest] = {}
        self.tick = 0
        self.num_arrived = 0
        self.num_evicted = 0
        self.num_hits = 0
        self.num_slid = 0

    def next_tick(self) -> None:
        self.kv.next_tick()
        self.tick += 1

    def pool(self, group: int) -> ModelPool:
        return self.pools[self.groups[group].pool_id]

    def key(self, request: Request, group: int, index: int) -> Key:
        tokens = request.prompt_token_ids + request.output_token_ids
        end = (index + 1) * BLOCK + self.groups[group].lookahead
        assert end <= len(tokens), "a key over tokens that do not exist"
        return (group, request.cache_salt, tuple(tokens[:end]))

    def choose(self, pick: int, *, is_running: bool) -> ModelRequest | None:
        chosen = [model for model in self.live.values() if (model.tables is not None) == is_running]
        return chosen[pick % len(chosen)] if chosen else None

    # ---- operations; `pick` chooses a request by its index among those that qualify ----

    def arrive(self, tokens: Sequence[int], salt: str) -> None:
        name = f"r{self.num_arrived}"
        self.num_arrived += 1
        self.live[name] = ModelRequest(stub_request(name, tokens, cache_salt=salt))

    def admit(self, pick: int) -> None:
        model = self.choose(pick, is_running=False)
        if model is None:
            return
        match = self.kv.match(model.request)
        assert match == self.expected_match(model.request)
        self.num_hits += match.num_tokens > 0
        self.next_tick()
        self.kv.admit(model.request, match)
        model.request.num_computed_tokens = match.num_tokens
        model.tables = [list(ids) for ids in match.block_ids]
        model.published = [len(ids) for ids in match.block_ids]
        for group, ids in enumerate(match.block_ids):
            for depth, block_id in enumerate(ids):
                if block_id:
                    self.pool(group).holders[block_id] = self.pool(group).holders.get(block_id, 0) + 1
                    self.pool(group).touched[block_id] = (self.tick, -depth)

    def expected_match(self, request: Request) -> PrefixMatch:
        """Brute force: the longest number of blocks that is valid in every group."""
        longest = (request.num_tokens - max(1, *(group.lookahead for group in self.groups))) // BLOCK
        for length in range(longest, -1, -1):
            found: list[tuple[int, ...]] = []
            for index, group in enumerate(self.groups):
                first = 0 if group.window is None else max(0, (length * BLOCK - group.window + 1) // BLOCK)
                ids = [self.pool(index).index.get(self.key(request, index, i)) for i in range(first, length)]
                found.append((*[0] * first, *(block_id for block_id in ids if block_id is not None)))
            if all(len(ids) == length for ids in found):
                return PrefixMatch(length * BLOCK, tuple(found))
        return PrefixMatch(0, tuple(() for _ in self.groups))

    def compute(self, pick: int, count: int, num_drafts: int, token: int) -> None:
        """One step: `count` own tokens, drafts that are all rejected, and a sample if the prompt is through."""
        model = self.choose(pick, is_running=True)
        if model is None or model.tables is None:
            return
        request = model.request
        count = min(count, request.num_tokens - request.num_computed_tokens)
        is_last = request.num_computed_tokens + count == request.num_tokens
        num_slots = request.num_computed_tokens + count + (num_drafts if is_last else 0)
        needed = [0] * len(self.pools)
        for group, table in enumerate(model.tables):
            needed[self.groups[group].pool_id] += max(0, -(-num_slots // BLOCK) - len(table))
        available = [len(pool.free()) + len(pool.cached()) for pool in self.pools]
        assert available == [pool.num_available for pool in self.kv.pools]
        if any(count > free for count, free in zip(needed, available, strict=True)):
            return
        self.next_tick()
        updates = self.kv.grow(request, num_slots)
        for group, update in enumerate(updates):
            self.expect_growth(model, group, update, -(-num_slots // BLOCK))
        request.num_computed_tokens += count
        if is_last:
            request.output_token_ids.append(token)
        self.next_tick()
        self.kv.publish(request)
        self.expect_publication(model)

    def expect_growth(self, model: ModelRequest, group: int, update: BlockTableUpdate, target: int) -> None:
        assert model.tables is not None
        table, pool, window = model.tables[group], self.pool(group), self.groups[group].window
        num_null = 0
        if window is not None:
            num_null = min(len(table), max(0, (model.request.num_computed_tokens - window + 1) // BLOCK))
        for index in range(num_null - 1, -1, -1):
            if table[index]:
                pool.release(table[index], (self.tick, -index))
                table[index] = 0
                self.num_slid += 1
        assert update.num_null_blocks == num_null
        assert update.num_kept_blocks == len(table)
        assert len(update.new_block_ids) == max(0, target - len(table))
        for block_id in update.new_block_ids:
            self.num_evicted += pool.take(block_id)
        table.extend(update.new_block_ids)

    def expect_publication(self, model: ModelRequest) -> None:
        assert model.tables is not None
        for group, table in enumerate(model.tables):
            num_full = max(0, model.request.num_computed_tokens - self.groups[group].lookahead) // BLOCK
            for index in range(model.published[group], num_full):
                key = self.key(model.request, group, index)
                if table[index] and key not in self.pool(group).index:
                    self.pool(group).index[key] = table[index]
                    self.pool(group).touched[table[index]] = (self.tick, -index)
            model.published[group] = max(num_full, model.published[group])

    def let_go(self, pick: int, is_final: bool) -> None:
        """Preempts or finishes a running request."""
        model = self.choose(pick, is_running=True)
        if model is None or model.tables is None:
            return
        self.next_tick()
        self.kv.release(model.request, is_final=is_final)
        for group, table in enumerate(model.tables):
            for depth in range(len(table) - 1, -1, -1):
                if table[depth]:
                    self.pool(group).release(table[depth], (self.tick, -depth))
        model.tables = None
        model.request.num_computed_tokens = 0
        if is_final:
            del self.live[model.request.request_id]

    def abort_waiting(self, pick: int) -> None:
        model = self.choose(pick, is_running=False)
        if model is not None:
            self.kv.release(model.request, is_final=True)
            del self.live[model.request.request_id]

    def reset(self) -> None:
        assert self.kv.reset_prefix_cache() == sum(len(pool.cached()) for pool in self.pools)
        for pool in self.pools:
            for block_id in pool.cached():
                pool.drop(block_id)

    # ---- what holds after each of them ----

    def check(self) -> None:
        self.kv.check()
        usage = self.kv.usage()
        assert sum(usage.values()) == sum(pool.num_blocks for pool in self.pools)
        assert usage["null"] == len(self.pools)
        for real, pool in zip(self.kv.pools, self.pools, strict=True):
            assert real.blocks.count(BlockState.CACHED) == len(pool.cached())
            assert real.blocks.count(BlockState.FREE) == len(pool.free())
            assert {b for b in range(pool.num_blocks) if b in real.cache} == pool.indexed()
            assert len(real.cache) == len(pool.index)
        for name, model in self.live.items():
            if model.tables is not None:
                assert [list(table) for table in self.kv.tables(name)] == model.tables
        assert set(self.kv._tables) == {name for name, model in self.live.items() if model.tables is not None}
        assert set(self.kv._keys._keys) <= set(self.live)
