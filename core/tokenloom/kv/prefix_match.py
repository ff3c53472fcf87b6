"""The longest prefix that is cached in every KV group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["PrefixMatch", "longest_prefix"]


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """What a waiting request need not compute.

    Attributes:
        num_tokens: how many of its tokens.
        block_ids: per group, the blocks that hold them; 0 where the window does not reach, and where a new block has to
            be filled.
        imports: per group, the indices of new blocks to be filled, from host memory unless `copies` says otherwise;
            empty if there are none.
        copies: per group, the block that the only new one is a copy of; empty if there is none.
    """

    num_tokens: int
    block_ids: tuple[tuple[int, ...], ...]
    imports: tuple[tuple[int, ...], ...] = ()
    copies: tuple[int, ...] = ()


def longest_prefix(
    num_groups: int, most_blocks: int, block_size: int, find: Callable[[int, int], Sequence[int]]
) -> PrefixMatch:
    """Asks all groups until they agree: a shorter prefix may be invalid in a window group where a longer one was valid.

    Args:
        num_groups: how many KV groups there are.
        most_blocks: the longest prefix that is of use.
        block_size: tokens of a block.
        find: (group, n) -> block ids of the longest usable prefix of the first n blocks.
    """
    found: list[Sequence[int]] = [() for _ in range(num_groups)]
    length = most_blocks
    is_settled = length <= 0
    while not is_settled:
        is_settled = True
        for group in range(num_groups):
            found[group] = find(group, length)
            if len(found[group]) < length:
                length = len(found[group])
                is_settled = length == 0
                break
    length = max(0, length)
    return PrefixMatch(length * block_size, tuple(tuple(ids[:length]) for ids in found))
