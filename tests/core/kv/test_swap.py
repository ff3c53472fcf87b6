"""Transfers in the pool: blocks on their way are nobody's, and nobody can have them, until the step has landed."""

from __future__ import annotations

import pytest

from tokenloom.interfaces.cache import CacheContext
from tokenloom.kv.block_pool import BlockState
from tokenloom.kv.pool import KVPool
from tokenloom.kv.swap import HostMemory
from tokenloom.testing.engine_harness import build_prefix_cache
from tokenloom.testing.stub_model import full_group, stub_request

REQUEST = stub_request("r", [1])


@pytest.mark.parametrize("swapped_first", [True, False])
def test_block_that_two_hold_stays_in_transfer_whoever_lets_go_last(swapped_first: bool) -> None:
    pool = KVPool(6, build_prefix_cache("hash", CacheContext(4, 6, 64)))
    ids = pool.allocate(2, 0.0)
    pool.publish([b"k" * 32], 0, ids[0], REQUEST, 0.0)
    pool.acquire(ids[:1], REQUEST, 0.0)
    if swapped_first:
        pool.release_for_transfer(ids, REQUEST)
        pool.release(ids[:1], REQUEST, 0.0)
    else:
        pool.release(ids[:1], REQUEST, 0.0)
        pool.release_for_transfer(ids, REQUEST)
    assert [pool.blocks.state(block_id) for block_id in ids] == [BlockState.IN_TRANSFER] * 2
    assert pool.num_available == 3
    pool.check()
    pool.land_transfers(1.0)
    assert [pool.blocks.state(block_id) for block_id in ids] == [BlockState.CACHED, BlockState.FREE]
    assert pool.num_available == 5
    pool.check()
    assert sorted(pool.allocate(5, 2.0)) == [1, 2, 3, 4, 5]


def test_host_memory_counts_what_the_next_token_can_see() -> None:
    """Block size 16, window 64, 200 tokens: 13 blocks of one group, 5 of the other."""
    groups = (full_group(page_bytes=24_576), full_group(1, window=64, page_bytes=73_728, pool_id=1))
    host = HostMemory(groups, 16, 10**6, keeps_windows=False)
    assert host.num_bytes(200) == 13 * 24_576 + 5 * 73_728 == 688_128
    tables = [list(range(1, 14)), [0] * 8 + [9, 10, 11, 12, 1]]
    assert host.export("a", 200, tables) == 688_128
    match = host.resume("a", lambda group, _: [*range(1, 11)] if group == 0 else [0] * 8 + [9, 10, 11, 12])
    assert match.num_tokens == 200
    assert match.imports == ((10, 11, 12), (12,)), "as in the decision record: 4 of 18 blocks come back"
    with pytest.raises(AssertionError, match="no room"):
        host.export("b", 200, tables)
    host.drop("a")
    assert host.used_bytes == 0
    assert host.take_transfers().dropped == ("a",)
