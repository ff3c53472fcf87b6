"""Which request holds which KV blocks, over all KV groups. The only caller of the pools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import final

from tokenloom.batch import BlockTableUpdate, BlockTransfers
from tokenloom.clock import Clock
from tokenloom.errors import PluginContractError
from tokenloom.interfaces.cache import BlockKey, PrefixCache, Reservation
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.kv.block_pool import BlockState
from tokenloom.kv.fragmentation import KVFragmentation, measure_fragmentation
from tokenloom.kv.kept_blocks import longest_kept_prefix
from tokenloom.kv.pool import KVPool
from tokenloom.kv.prefix_match import PrefixMatch, longest_prefix
from tokenloom.kv.published_blocks import PublishedBlocks
from tokenloom.kv.request_keys import RequestKeys
from tokenloom.kv.reservation import ask_reservation
from tokenloom.kv.sibling_copy import SiblingCopies
from tokenloom.kv.swap import HostMemory
from tokenloom.request import Request

__all__ = ["KVManager", "PrefixMatch"]


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
        host_memory_bytes: int = 0,
        *,
        copies_blocks: bool = False,
    ) -> None:
        """`build_cache(num_blocks)` makes one pool's index, `plugin` names it in errors; the executor has room for
        `host_memory_bytes` of KV of swapped requests, and can copy blocks if `copies_blocks`."""
        self._plugin = plugin
        self.block_size = block_size
        self.groups = tuple(groups)
        self._clock = clock
        self.pools = tuple(KVPool(count, build_cache(count), plugin) for count in num_blocks)
        self.pool_of_group = tuple(group.pool_id for group in self.groups)
        self.draft_groups = tuple(group.group_id for group in self.groups if group.is_drafter or group.takes_drafts)
        self._tables: dict[str, list[list[int]]] = {}
        self._keys = RequestKeys(block_root, self.groups, block_size)
        pools = [self.pools[index] for index in self.pool_of_group]
        self._published = PublishedBlocks(self.groups, pools, self._keys, block_size, clock)
        # Preempted requests that kept blocks, and how many tokens those hold.
        self._kept: dict[str, int] = {}
        # The newest position sees window - 1 cached tokens before it.
        self._window_blocks = tuple(
            None if group.window is None else -(-(group.window - 1) // block_size) for group in self.groups
        )
        self._stores_prefixes = self.pools[0].cache.stores_prefixes
        self.shares_in_flight = self._stores_prefixes and self.pools[0].cache.shares_in_flight
        self.in_runs = self.pools[0].cache.reserves_runs
        if self.in_runs and self._stores_prefixes:
            raise PluginContractError(plugin, "a cache that reserves runs stores no prefixes", "it does both")
        lookahead, is_on = max(group.lookahead for group in self.groups), copies_blocks and self.shares_in_flight
        self.siblings = SiblingCopies(block_size, lookahead, is_on=is_on)
        self.host = HostMemory(self.groups, block_size, host_memory_bytes, keeps_windows=self.in_runs)

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
        """Blocks per KV group that the cache wants a request to hold from admission on; 0 lets it grow."""
        return self.reservation(request).num_blocks

    def reservation(self, request: Request) -> Reservation:
        """What the cache wants a request to hold from admission on."""
        return ask_reservation(self.pools[0].cache, request, self._plugin)

    def reads_cache(self, request: Request) -> bool:
        """Whether cached blocks are of use to a request."""
        # Logprobs of the prompt need its hidden states, which no cache holds.
        return self._stores_prefixes and request.num_missing_prompt_logprobs == 0

    def most_cached_blocks(self, request: Request) -> int:
        """Longest hit that a request can have, in blocks: its last token is computed again, for its logits."""
        return max(0, request.num_tokens - max(1, *(group.lookahead for group in self.groups))) // self.block_size

    def prefix_keys(self, request: Request) -> Sequence[BlockKey]:
        """Keys of a request's full blocks in the first KV group, those not computed yet included."""
        return self._keys.first(request, 0, (request.num_tokens - self.groups[0].lookahead) // self.block_size)

    def match(self, request: Request) -> PrefixMatch:
        """The longest cached prefix of a request's tokens, at most num_tokens - 1 of them (the last needs logits).

        Of a swapped request, all that it had computed, unless more is cached.
        """

        def find(group: int, num_blocks: int) -> Sequence[int]:
            if not self.reads_cache(request):
                return ()
            keys = self._keys.first(request, group, num_blocks)
            return self.pools[self.pool_of_group[group]].match(keys, self._window_blocks[group])

        most = self.most_cached_blocks(request) if self.reads_cache(request) else 0
        match = longest_prefix(len(self.groups), most, self.block_size, find)
        if match.num_tokens < self.host.num_tokens(request.request_id):
            return self.host.resume(request.request_id, find)
        kept = self._kept.get(request.request_id, 0)
        if 0 < kept >= match.num_tokens:
            return PrefixMatch(kept, tuple(tuple(table) for table in self._tables[request.request_id]))
        return self.siblings.extend(match, request, self._tables)

    def admit(self, request: Request, match: PrefixMatch) -> None:
        """Starts a request's block table with the blocks it found, and pins them; those that it kept are so already."""
        now_s = self._clock.now()
        is_kept = self._kept.pop(request.request_id, 0) == match.num_tokens > 0
        kept = self._tables.pop(request.request_id, [])
        assert is_kept or not kept or match.num_tokens, f"{request.request_id} already holds blocks"
        for group, ids in enumerate(match.block_ids if not is_kept else ()):
            self.pools[self.pool_of_group[group]].acquire(ids, request, now_s)
        for group, table in enumerate(kept if not is_kept else ()):
            self.pools[self.pool_of_group[group]].release(table, request, now_s)
        self._tables[request.request_id] = [list(ids) for ids in match.block_ids]
        imports, num_full = match.imports or [()] * len(self.groups), match.num_tokens // self.block_size
        # What comes back from the host is offered again: the index has lost it.
        self._published.start(request.request_id, [min([*indices, num_full]) for indices in imports])
        self.host.start(request.request_id, match)
        self.siblings.start(request, match)

    def place(self, request: Request, starts: Sequence[int]) -> None:
        """Gives an admitted request the run that it reserved in each KV group; `starts` are their first blocks."""
        for group, start in enumerate(starts):
            pool = self.pools[self.pool_of_group[group]].blocks
            # The whole table: nothing was found in an index, and what comes back from the host needs blocks, too.
            self._tables[request.request_id][group] = pool.allocate_run(start, self.reserved_blocks(request))

    def grow(self, request: Request, num_slots: int, num_drafts: int = 0) -> tuple[BlockTableUpdate, ...]:
        """Makes room for `num_slots` tokens, and `num_drafts` more in a drafter's groups; lets go of blocks that have
        left their window, which slides by the landed frontier. Returns how the table of each group changed."""
        least, most = -(-num_slots // self.block_size), -(-(num_slots + num_drafts) // self.block_size)
        if self.siblings.sources or self.host.coming_back:
            self._bring_back(request)
        updates: list[BlockTableUpdate] = []
        for group, table in enumerate(self._tables[request.request_id]):
            num_kept, target = len(table), most if group in self.draft_groups else least
            num_null = 0 if self._window_blocks[group] is None else self._slide(request, group, table)
            if target > num_kept:
                table += self.pools[self.pool_of_group[group]].allocate(target - num_kept, self._clock.now())
                updates.append(BlockTableUpdate(num_null, num_kept, tuple(table[num_kept:])))
            else:
                updates.append(BlockTableUpdate.unchanged(num_null, num_kept))
        return tuple(updates)

    def _bring_back(self, request: Request) -> None:
        """Gives a request that starts blocks for what is copied, or comes back from host memory."""
        index, imports = self.siblings.copying(request), self.host.importing(request.request_id)
        tables = self._tables[request.request_id]
        for group, table in enumerate(tables):
            indices = [*([] if index is None else [index]), *(() if imports is None else imports[group])]
            self.pools[self.pool_of_group[group]].fill(table, indices, self._clock.now())
        if index is not None:
            self.siblings.copy(request, [table[index] for table in tables])
        if imports is not None:
            self.host.restore(request.request_id, tables)

    def _slide(self, request: Request, group: int, table: list[int]) -> int:
        """Replaces blocks that no coming position sees by the null block; returns how many lead the table now."""
        window = self.groups[group].window
        if window is None or self.in_runs:
            return 0
        num_null = min(len(table), max(0, (request.num_computed_tokens - window + 1) // self.block_size))
        self.pools[self.pool_of_group[group]].release_leading(table, num_null, request, self._clock.now())
        return num_null

    def publish(self, request: Request) -> None:
        """Indexes every full block below the computed frontier that was not offered yet."""
        if self._stores_prefixes:
            self._published.publish(request, self._tables[request.request_id])

    def release(self, request: Request, *, is_final: bool) -> None:
        """Gives all blocks of a request back. `is_final` also forgets its keys; a preempted request keeps them."""
        now_s = self._clock.now()
        for group, table in enumerate(self._tables.pop(request.request_id, [])):
            self.pools[self.pool_of_group[group]].release(table, request, now_s)
        self._published.forget(request.request_id)
        self._kept.pop(request.request_id, None)
        self.siblings.stop(request)
        if is_final:
            self._keys.forget(request.request_id)
            self.host.drop(request.request_id)

    def kept_blocks(self, request: Request, most_blocks: int) -> int:
        """Leading blocks per group that a request would keep if it were preempted now and asked to keep so many."""
        if self.in_runs or not most_blocks:
            return 0
        tables, done = self._tables[request.request_id], self._kept.get(request.request_id, request.num_computed_tokens)
        return longest_kept_prefix(self.groups, tables, done, self.block_size, most_blocks)

    @property
    def keepers(self) -> Iterable[str]:
        """Ids of waiting requests that hold blocks, those that were preempted first at the front."""
        return self._kept

    def release_tail(self, request: Request, most_blocks: int) -> int:
        """Gives all but a request's leading blocks back; returns how many tokens the kept ones hold."""
        num_kept = self.kept_blocks(request, most_blocks)
        if num_kept == 0:
            self.release(request, is_final=False)
            return 0
        for group, table in enumerate(self._tables[request.request_id]):
            self.pools[self.pool_of_group[group]].release(table, request, self._clock.now(), first=num_kept)
            del table[num_kept:]
        self._published.forget(request.request_id)
        self.siblings.stop(request)
        self._kept[request.request_id] = num_kept * self.block_size
        return num_kept * self.block_size

    def swap_out(self, request: Request) -> int:
        """Gives all blocks of a request back once the coming step has copied them to host memory; returns the bytes."""
        tables = self._tables.pop(request.request_id)
        num_bytes = self.host.export(request.request_id, request.num_computed_tokens, tables)
        for group, table in enumerate(tables):
            self.pools[self.pool_of_group[group]].release_for_transfer(table, request)
        self._published.forget(request.request_id)
        self.siblings.stop(request)
        return num_bytes

    def land_transfers(self) -> None:
        """Ends the transfers of the step that has landed."""
        for pool in self.pools:
            pool.land_transfers(self._clock.now())

    def take_transfers(self) -> BlockTransfers:
        """What moves before the coming step."""
        return replace(self.host.take_transfers(), copies=self.siblings.take_copies())

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

    def fragmentation(self, requests: Iterable[Request]) -> KVFragmentation:
        """How much of the memory is in use; `requests` are all that may hold some. O(blocks held)."""
        held = [
            (self._tables[name], max(request.num_computed_tokens, self._kept.get(name, 0)))
            for request in requests
            if (name := request.request_id) in self._tables
        ]
        return measure_fragmentation([pool.blocks for pool in self.pools], self.pool_of_group, self.block_size, held)

    def reset_prefix_cache(self) -> int:
        """Evicts every cached block that no request uses; returns how many."""
        return sum(pool.clear_index() for pool in self.pools)

    def check_counts(self) -> None:
        """Checks that the states of each pool's blocks add up to its size; O(1)."""
        for pool in self.pools:
            pool.blocks.check_counts()

    def check(self) -> None:
        """Recounts everything: pool states, host memory, and each block's holders against the tables."""
        self.host.check()
        for index, pool in enumerate(self.pools):
            pool.check()
            groups = [group for group, pool_id in enumerate(self.pool_of_group) if pool_id == index]
            pool.blocks.check_holders(tables[group] for tables in self._tables.values() for group in groups)
