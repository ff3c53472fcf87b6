"""Which request holds which KV blocks, over all KV groups. The only caller of the pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from tokenloom.batch import BlockTableUpdate
from tokenloom.clock import Clock
from tokenloom.errors import PluginContractError
from tokenloom.interfaces.cache import BlockKey, PrefixCache
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.kv.block_hash import extend_keys, root_key
from tokenloom.kv.block_pool import NULL_BLOCK, BlockState
from tokenloom.kv.pool import KVPool
from tokenloom.plugin_guard import plugin_call
from tokenloom.request import Request

__all__ = ["KVManager", "PrefixMatch"]


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """A prefix that is cached in every group: its length in tokens (whole blocks) and its block ids per group."""

    num_tokens: int
    block_ids: tuple[tuple[int, ...], ...]


@final
class KVManager:
    """Block tables of all requests.

    Ids change hands only here: `admit` pins what a waiting request found, `grow` appends, `publish` indexes what was
    computed, `release` gives everything back.
    """

    def __init__(
        self,
        groups: Sequence[KVGroupSpec],
        num_blocks: Sequence[int],
        block_size: int,
        block_root: bytes,
        build_cache: Callable[[int], PrefixCache],
        clock: Clock,
        plugin: str = "cache",
    ) -> None:
        """`num_blocks` is per pool; `build_cache(num_blocks)` makes one pool's index; `plugin` names it in errors."""
        self._plugin = plugin
        self.block_size = block_size
        self.groups = tuple(groups)
        self._clock = clock
        self._block_root = block_root
        self.pools = tuple(KVPool(count, build_cache(count), plugin) for count in num_blocks)
        self.pool_of_group = tuple(group.pool_id for group in self.groups)
        self._tables: dict[str, list[list[int]]] = {}
        self._keys: dict[str, list[list[BlockKey]]] = {}
        self._num_published: dict[str, list[int]] = {}
        # The newest position sees window - 1 cached tokens before it.
        self._window_blocks = tuple(
            None if group.window is None else -(-(group.window - 1) // block_size) for group in self.groups
        )
        self._stores_prefixes = self.pools[0].cache.stores_prefixes

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that requests can hold, in the smallest pool."""
        return min(pool.blocks.num_usable for pool in self.pools)

    @property
    def max_sequence_tokens(self) -> int:
        """Longest sequence that fits when it runs alone; groups that share a pool share its blocks."""
        return self.block_size * min(
            pool.blocks.num_usable // self.pool_of_group.count(index) for index, pool in enumerate(self.pools)
        )

    def reserved_blocks(self, request: Request) -> int:
        """Blocks per KV group that the cache wants a request to hold from admission on; 0 lets it grow.

        Raises:
            PluginContractError: the cache asks for one run of block ids, which this core cannot give.
        """
        with plugin_call(self._plugin, "reservation() returns a Reservation"):
            reservation = self.pools[0].cache.reservation(request)
            num_blocks, is_contiguous = reservation.num_blocks, reservation.contiguous
        if is_contiguous:
            detail = f"{request.request_id}: {reservation}"
            raise PluginContractError(self._plugin, "reservations are not contiguous", detail)
        return num_blocks

    def match(self, request: Request) -> PrefixMatch:
        """The longest cached prefix of a request's tokens, at most num_tokens - 1 of them (the last needs logits)."""
        # Logprobs of the prompt need its hidden states, which no cache holds.
        if not self._stores_prefixes or request.num_missing_prompt_logprobs > 0:
            return PrefixMatch(0, tuple(() for _ in self.groups))
        length = (request.num_tokens - max(1, *(group.lookahead for group in self.groups))) // self.block_size
        found: list[list[int]] = [[] for _ in self.groups]
        # A shorter prefix may be invalid in a window group where a longer one was valid: repeat until all agree.
        is_settled = length <= 0
        while not is_settled:
            is_settled = True
            for group, keys in enumerate(self._request_keys(request, length)):
                found[group] = self.pools[self.pool_of_group[group]].match(keys, self._window_blocks[group])
                if len(found[group]) < length:
                    length = len(found[group])
                    is_settled = length == 0
                    break
        return PrefixMatch(max(0, length) * self.block_size, tuple(tuple(ids[: max(0, length)]) for ids in found))

    def admit(self, request: Request, match: PrefixMatch) -> None:
        """Starts a request's block table with the blocks it found, and pins them."""
        assert request.request_id not in self._tables, f"{request.request_id} already holds blocks"
        now_s = self._clock.now()
        for group, ids in enumerate(match.block_ids):
            self.pools[self.pool_of_group[group]].acquire(ids, request, now_s)
        self._tables[request.request_id] = [list(ids) for ids in match.block_ids]
        self._num_published[request.request_id] = [len(ids) for ids in match.block_ids]

    def grow(self, request: Request, num_slots: int) -> tuple[BlockTableUpdate, ...]:
        """Makes room for `num_slots` tokens in all, and lets go of blocks that have left their window.

        The window slides by the landed frontier. Returns how the table of each group changed.
        """
        target = -(-num_slots // self.block_size)
        updates: list[BlockTableUpdate] = []
        for group, table in enumerate(self._tables[request.request_id]):
            num_null, num_kept = self._slide(request, group, table), len(table)
            if target > num_kept:
                table += self.pools[self.pool_of_group[group]].allocate(target - num_kept, self._clock.now())
            updates.append(BlockTableUpdate(num_null, num_kept, tuple(table[num_kept:])))
        return tuple(updates)

    def _slide(self, request: Request, group: int, table: list[int]) -> int:
        """Replaces blocks that no coming position sees by the null block; returns how many lead the table now."""
        window = self.groups[group].window
        if window is None:
            return 0
        num_null = max(0, (request.num_computed_tokens - window + 1) // self.block_size)
        for index in range(min(num_null, len(table)) - 1, -1, -1):
            if table[index] == NULL_BLOCK:
                break
            self.pools[self.pool_of_group[group]].release_one(table[index], index, request, self._clock.now())
            table[index] = NULL_BLOCK
        return min(num_null, len(table))

    def publish(self, request: Request) -> None:
        """Indexes every full block below the computed frontier that was not offered yet."""
        if not self._stores_prefixes:
            return
        frontier = min(request.num_computed_tokens, request.num_tokens)
        for group, table in enumerate(self._tables[request.request_id]):
            published = self._num_published[request.request_id]
            num_full = max(0, frontier - self.groups[group].lookahead) // self.block_size
            if published[group] >= num_full:
                continue
            keys = self._group_keys(request, group, num_full)
            for index in range(published[group], num_full):
                if table[index] != NULL_BLOCK:
                    pool = self.pools[self.pool_of_group[group]]
                    pool.publish(keys, index, table[index], request, self._clock.now())
            published[group] = num_full

    def release(self, request: Request, *, is_final: bool) -> None:
        """Gives all blocks of a request back. `is_final` also forgets its keys; a preempted request keeps them."""
        now_s = self._clock.now()
        for group, table in enumerate(self._tables.pop(request.request_id, [])):
            self.pools[self.pool_of_group[group]].release(table, request, now_s)
        self._num_published.pop(request.request_id, None)
        if is_final:
            self._keys.pop(request.request_id, None)

    def next_tick(self) -> None:
        """Starts a new commit, for recency."""
        for pool in self.pools:
            pool.next_tick()

    def tables(self, request_id: str) -> Sequence[Sequence[int]]:
        """Block ids per group of a request that holds memory."""
        return self._tables[request_id]

    def usage(self) -> Mapping[str, int]:
        """Blocks by state over all pools: free, active, cached, in_transfer, null."""
        return {state.name.lower(): sum(pool.blocks.count(state) for pool in self.pools) for state in BlockState}

    def reset_prefix_cache(self) -> int:
        """Evicts every cached block that no request uses; returns how many."""
        return sum(pool.clear_index() for pool in self.pools)

    def check_counts(self) -> None:
        """Checks that the states of each pool's blocks add up to its size; O(1)."""
        for pool in self.pools:
            pool.blocks.check_counts()

    def check(self) -> None:
        """Recounts everything: pool states, and each block's holders against the tables."""
        for index, pool in enumerate(self.pools):
            pool.check()
            held: dict[int, int] = {}
            for tables in self._tables.values():
                for group, table in enumerate(tables):
                    for block_id in table if self.pool_of_group[group] == index else ():
                        held[block_id] = held.get(block_id, 0) + 1
            held.pop(NULL_BLOCK, None)
            for block_id in range(1, pool.blocks.num_blocks):
                refs, expected = pool.blocks.ref_count(block_id), held.get(block_id, 0)
                assert refs == expected, f"block {block_id}: {refs} holders, the tables say {expected}"

    def _request_keys(self, request: Request, num_blocks: int) -> list[list[BlockKey]]:
        return [self._group_keys(request, group, num_blocks) for group in range(len(self.groups))]

    def _group_keys(self, request: Request, group: int, num_blocks: int) -> list[BlockKey]:
        """Keys of a request's first blocks; kept until it ends, as its tokens only ever grow."""
        keys = self._keys.setdefault(request.request_id, [[] for _ in self.groups])[group]
        if len(keys) < num_blocks:
            root = root_key(self._block_root, group, self.block_size, request.cache_salt)
            token_ids = request.prompt_token_ids + request.output_token_ids
            extend_keys(keys, root, token_ids, self.block_size, num_blocks, self.groups[group].lookahead)
        return keys[:num_blocks]
