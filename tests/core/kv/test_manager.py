"""KVManager: block tables, hits, windows and lookahead over one or several groups."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from tokenloom.batch import BlockTableUpdate
from tokenloom.clock import VirtualClock
from tokenloom.interfaces.cache import CacheContext, PrefixCache
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.kv.manager import KVManager
from tokenloom.request import Request
from tokenloom.testing.engine_harness import build_prefix_cache
from tokenloom.testing.stub_model import full_group, stub_request

BLOCK = 4


def manager(
    num_blocks: Sequence[int] = (32,),
    groups: Sequence[KVGroupSpec] | None = None,
    cache: str = "hash",
    block_root: bytes = b"root",
) -> KVManager:
    def build_cache(count: int) -> PrefixCache:
        return build_prefix_cache(cache, CacheContext(BLOCK, count, 256))

    return KVManager(groups or (full_group(),), num_blocks, BLOCK, block_root, build_cache, VirtualClock())


def compute(kv: KVManager, request: Request, num_tokens: int | None = None) -> tuple[BlockTableUpdate, ...]:
    """One step of a running request; all its tokens if no number is given."""
    end = request.num_tokens if num_tokens is None else request.num_computed_tokens + num_tokens
    kv.next_tick()
    updates = kv.grow(request, end)
    request.num_computed_tokens = end
    kv.next_tick()
    kv.publish(request)
    kv.check()
    return updates


def start(kv: KVManager, request: Request) -> Request:
    match = kv.match(request)
    kv.admit(request, match)
    request.num_computed_tokens = match.num_tokens
    return request


def run_once(kv: KVManager, tokens: Sequence[int], **fields: Any) -> None:
    """Computes a sequence and lets go of it."""
    request = start(kv, stub_request("run-once", tokens, **fields))
    compute(kv, request)
    kv.release(request, is_final=True)


def hit(kv: KVManager, tokens: Sequence[int], **fields: Any) -> int:
    """Tokens that a newcomer would find."""
    request = stub_request("probe", tokens, **fields)
    found = kv.match(request).num_tokens
    kv.release(request, is_final=True)
    return found


def evict(kv: KVManager, tokens: Sequence[int], index: int, group: int = 0) -> None:
    """Evicts one cached block of a sequence, whatever its turn."""
    pool = kv.pools[kv.pool_of_group[group]]
    key = kv._keys.first(stub_request("evicted", tokens), group, index + 1)[index]
    kv.release(stub_request("evicted", tokens), is_final=True)
    (block_id,) = pool.cache.match([key])
    pool._forget(block_id)
    pool.blocks.evict(block_id)
    pool.check()


# ---- hits ----


@pytest.mark.parametrize(("length", "expected"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)])
def test_hit_leaves_at_least_one_token_to_compute(length: int, expected: int) -> None:
    kv = manager()
    run_once(kv, range(16))
    assert hit(kv, range(length)) == expected


def test_hit_of_a_resumed_request_covers_its_output_too() -> None:
    kv = manager()
    request = start(kv, stub_request("r", range(6)))
    compute(kv, request)
    for token in (70, 71, 72):
        request.output_token_ids.append(token)
        compute(kv, request, 1)
    request.num_computed_tokens = 0
    kv.release(request, is_final=False)
    assert kv.match(request).num_tokens == 8
    assert hit(kv, [*range(6), 70, 71, 99]) == 8
    assert hit(kv, [*range(6), 70, 99, 99]) == 4


def test_hit_stops_at_the_first_gap() -> None:
    """Four blocks cached, the second one evicted: one block is found, not three."""
    kv = manager()
    run_once(kv, range(17))
    evict(kv, range(17), 1)
    assert hit(kv, range(17)) == 4


def test_match_never_mutates() -> None:
    kv = manager()
    run_once(kv, range(17))
    before = kv.usage()
    assert [hit(kv, range(17)) for _ in range(3)] == [16, 16, 16]
    assert kv.usage() == before


def test_matched_blocks_are_pinned_and_shared() -> None:
    kv = manager((8,))
    run_once(kv, range(13))
    first = start(kv, stub_request("a", range(13)))
    second = start(kv, stub_request("b", range(13)))
    assert kv.tables("a")[0] == kv.tables("b")[0]
    assert kv.usage()["active"] == 3
    kv.release(first, is_final=True)
    assert kv.usage()["active"] == 3
    kv.release(second, is_final=True)
    assert kv.usage()["active"] == 0
    kv.check()


def test_salt_root_and_group_isolate() -> None:
    kv = manager()
    run_once(kv, range(9), cache_salt="a")
    assert hit(kv, range(9), cache_salt="a") == 8
    assert hit(kv, range(9), cache_salt="b") == 0
    assert hit(kv, range(9)) == 0
    request = stub_request("probe", range(9))
    other = manager(block_root=b"other weights")
    assert kv._keys.first(request, 0, 2) != other._keys.first(request, 0, 2)
    two = manager(groups=(full_group(), full_group(1)))
    assert two._keys.first(request, 0, 2) != two._keys.first(request, 1, 2)


def test_prompts_made_to_collide_find_nothing() -> None:
    """The pair (+31, -1) that fools a polynomial rolling hash."""
    kv = manager()
    run_once(kv, [100] * 9)
    for position in range(7):
        forged = [100] * 9
        forged[position] -= 1
        forged[position + 1] += 31
        assert hit(kv, forged) == (4 if position >= 4 else 0)


# ---- publishing ----


def test_only_full_blocks_below_the_frontier_are_published() -> None:
    kv = manager()
    request = start(kv, stub_request("r", range(10)))
    for end, expected in ((3, 0), (4, 4), (7, 4), (8, 8), (10, 8)):
        compute(kv, request, end - request.num_computed_tokens)
        assert hit(kv, range(11)) == expected


def test_slots_of_rejected_drafts_are_never_published() -> None:
    """Room for 3 drafts behind 7 tokens: the block that they fill is not complete until real tokens fill it."""
    for num_accepted in range(4):
        kv = manager()
        request = start(kv, stub_request("r", range(6)))
        compute(kv, request)
        request.output_token_ids.append(6)
        kv.grow(request, 10)
        request.output_token_ids.extend(range(7, 7 + num_accepted + 1))
        request.num_computed_tokens = 7 + num_accepted
        kv.publish(request)
        assert hit(kv, range(20)) == request.num_computed_tokens // BLOCK * BLOCK
        assert len(kv.tables("r")[0]) == 3
        kv.check()


def test_frontier_beyond_the_kept_tokens_publishes_the_kept_ones_only() -> None:
    kv = manager()
    request = start(kv, stub_request("r", range(4)))
    kv.grow(request, 8)
    request.num_computed_tokens = 8
    kv.publish(request)
    assert len(kv.pools[0].cache) == 1


def test_duplicate_blocks_stay_private_and_are_freed() -> None:
    """Two requests that compute the same prompt side by side: one copy is indexed, the other one goes."""
    kv = manager()
    requests = [start(kv, stub_request(name, range(8))) for name in ("a", "b")]
    for request in requests:
        compute(kv, request)
    assert len(kv.pools[0].cache) == 2
    for request in reversed(requests):
        kv.release(request, is_final=True)
    assert kv.usage() == {"null": 1, "free": 29, "active": 0, "cached": 2, "in_transfer": 0}


def test_cache_none_finds_nothing_and_frees_everything() -> None:
    kv = manager(cache="none")
    run_once(kv, range(17))
    assert hit(kv, range(17)) == 0
    assert kv.usage()["free"] == 31


def test_reset_evicts_what_no_request_uses() -> None:
    kv = manager()
    run_once(kv, range(9))
    running = start(kv, stub_request("r", [*range(5), 99, 98]))
    assert kv.reset_prefix_cache() == 1
    assert hit(kv, range(9)) == 4
    kv.release(running, is_final=True)
    assert kv.reset_prefix_cache() == 1
    assert kv.usage()["free"] == 31


def test_memory_of_10k_random_prompts_is_bounded_by_the_pool() -> None:
    kv = manager((64,))
    rng = random.Random(0)
    for index in range(10_000):
        tokens = [rng.randrange(50) for _ in range(rng.randrange(1, 30))]
        request = start(kv, stub_request(f"r{index}", tokens))
        kv.next_tick()
        kv.grow(request, len(tokens))
        request.num_computed_tokens = len(tokens)
        kv.publish(request)
        kv.release(request, is_final=True)
        assert len(kv.pools[0].cache) <= 63
    kv.check()
    heap = kv.pools[0]._heap
    assert len(heap._keys) <= 63
    assert len(heap._heap) <= 64 + 4 * 63
    assert not kv._tables
    assert not kv._keys
    assert not kv._published


# ---- windows ----

WINDOW = full_group(0, window=6)


def test_window_group_lets_go_of_blocks_that_no_position_sees() -> None:
    kv = manager(groups=(WINDOW,))
    request = start(kv, stub_request("r", range(40)))
    for _ in range(40):
        first_visible = max(0, request.num_computed_tokens - 5)
        old = list(kv.tables("r")[0])
        (update,) = compute(kv, request, 1)
        table = list(kv.tables("r")[0])
        num_null = first_visible // BLOCK
        assert table[:num_null] == [0] * num_null
        assert all(table[num_null:])
        assert table == [0] * update.num_null_blocks + old[update.num_null_blocks : update.num_kept_blocks] + list(
            update.new_block_ids
        )
        assert kv.usage()["active"] <= 3


def test_window_group_hit_needs_the_last_window_only() -> None:
    kv = manager(groups=(WINDOW,))
    run_once(kv, range(21))
    for index in range(3):
        evict(kv, range(21), index)
    request = stub_request("r", range(21))
    match = kv.match(request)
    assert match.num_tokens == 20
    assert match.block_ids[0][:3] == (0, 0, 0)
    assert all(match.block_ids[0][3:])
    kv.admit(request, match)
    request.num_computed_tokens = 20
    assert compute(kv, request)[0].num_null_blocks == 3


def test_window_of_one_token_needs_no_cached_block() -> None:
    kv = manager(groups=(full_group(0, window=1),))
    run_once(kv, range(9))
    request = stub_request("r", range(9))
    match = kv.match(request)
    assert match.block_ids == ((0, 0),)
    kv.admit(request, match)
    request.num_computed_tokens = match.num_tokens
    compute(kv, request)
    assert list(kv.tables("r")[0][:2]) == [0, 0]


@pytest.mark.parametrize("pools", [(0, 0), (0, 1)])
def test_hit_is_the_longest_prefix_that_every_group_holds(pools: tuple[int, int]) -> None:
    """Full attention lost block 2, the window group's last valid prefix below it is what remains."""
    groups = (full_group(0, pool_id=pools[0]), full_group(1, window=5, pool_id=pools[1]))
    kv = manager((32,) * (max(pools) + 1), groups)
    run_once(kv, range(21))
    assert hit(kv, range(21)) == 20
    evict(kv, range(21), 3, group=0)
    assert hit(kv, range(21)) == 12
    evict(kv, range(21), 2, group=1)
    assert hit(kv, range(21)) == 8
    match = kv.match(stub_request("r", range(21)))
    assert match.block_ids[1][0] == 0
    assert match.block_ids[1][1] != 0


def test_max_sequence_tokens_counts_groups_that_share_a_pool() -> None:
    pair = (full_group(0), full_group(1))
    assert manager((33,), pair).max_sequence_tokens == 16 * BLOCK
    apart = (full_group(0), full_group(1, pool_id=1))
    assert manager((33, 9), apart).max_sequence_tokens == 8 * BLOCK
    assert manager((33, 9), apart).num_usable_blocks == 8


# ---- lookahead ----


def test_lookahead_group_shares_a_block_only_if_the_next_token_agrees() -> None:
    drafter = full_group(1, lookahead=1, is_drafter=True)
    kv = manager(groups=(full_group(), drafter))
    run_once(kv, range(13))
    assert hit(kv, range(13)) == 12
    assert hit(kv, [*range(8), 99, 99]) == 4, "entry 7 of the drafter depends on token 8"
    assert hit(kv, [*range(8), 8, 99]) == 8


def test_lookahead_hit_ends_where_its_tokens_end() -> None:
    for lookahead in (1, 2, 3):
        kv = manager(groups=(full_group(), full_group(1, lookahead=lookahead)))
        run_once(kv, range(32))
        for length in range(1, 20):
            assert hit(kv, range(length)) == max(0, length - lookahead) // BLOCK * BLOCK


def test_check_finds_a_table_that_was_changed_behind_its_back() -> None:
    kv = manager()
    request = start(kv, stub_request("r", range(9)))
    compute(kv, request)
    kv._tables["r"][0].pop()
    with pytest.raises(AssertionError, match="the tables say 0"):
        kv.check()
