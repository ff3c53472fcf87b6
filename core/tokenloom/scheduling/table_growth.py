"""How many blocks a request's table needs to hold the tokens of a step."""

from __future__ import annotations

from tokenloom.kv.manager import KVManager
from tokenloom.kv.prefix_match import PrefixMatch

__all__ = ["table_growth"]


def table_growth(kv: KVManager, request_id: str, num_blocks: int, match: PrefixMatch | None) -> tuple[int, ...]:
    """Blocks to allocate per pool; () for a running request that has enough already.

    Args:
        kv: holds the table of a running request.
        request_id: whose.
        num_blocks: that the table is to span in each KV group.
        match: what a waiting request begins with; None for a running one.
    """
    if match is None:
        tables = kv.tables(request_id)
        for table in tables:
            if len(table) < num_blocks:
                break
        else:
            # As in most steps of a decoding request.
            return ()
        missing = [max(0, num_blocks - len(table)) for table in tables]
    else:
        missing = [max(0, num_blocks - len(block_ids)) for block_ids in match.block_ids]
        for group, indices in enumerate(match.imports):
            missing[group] += len(indices)
    needed = [0] * len(kv.pools)
    for pool, count in zip(kv.pool_of_group, missing, strict=True):
        needed[pool] += count
    return tuple(needed)
