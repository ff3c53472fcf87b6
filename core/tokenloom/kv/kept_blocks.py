"""How much of its memory a request can keep when it is preempted, and still go on from there."""

from __future__ import annotations

from collections.abc import Sequence

from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.kv.block_pool import NULL_BLOCK

__all__ = ["longest_kept_prefix"]


def longest_kept_prefix(
    groups: Sequence[KVGroupSpec], tables: Sequence[Sequence[int]], num_tokens: int, block_size: int, most_blocks: int
) -> int:
    """Number of leading blocks, at most `most_blocks`, from whose end a request can be computed further.

    All of them are full, in every group. In a window group what the next token sees must still be there: with n leading
    null blocks, m blocks will do only if n = 0 or the window before token m * block_size begins in block n or later.

    Args:
        groups: the KV groups.
        tables: the request's block ids per group.
        num_tokens: its computed tokens.
        block_size: tokens of a block.
        most_blocks: as many as it may keep.
    """
    num_kept = min(most_blocks, *(max(0, num_tokens - group.lookahead) // block_size for group in groups))
    for group, table in zip(groups, tables, strict=True):
        num_null = sum(block_id == NULL_BLOCK for block_id in table)
        if group.window is None or num_null == 0:
            continue
        first_seen = max(0, num_kept * block_size - group.window + 1) // block_size
        # A shorter prefix sees further back: if the longest one lacks a block, all do.
        if first_seen < num_null:
            return 0
    return max(0, num_kept)
