"""Bytes that attention moves, by formula: with all scores in memory, and in tiles that keep them in a fast cache.

Both read Q and write O once. With scores in memory, K and V are read once, and fp32 scores and weights are written and
read for each head. In tiles, K and V are read up to the last row's position once for each tile of rows, which the query
heads of a KV head share.

Source: Dao et al., FlashAttention (2022), section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["TILE_ROWS", "AttentionShapes", "bytes_in_tiles", "bytes_of_a_request", "bytes_with_scores"]

TILE_ROWS = 64
"""Query positions of a tile where nobody says otherwise."""


@dataclass(frozen=True, slots=True)
class AttentionShapes:
    """Heads of a layer, and the bytes of an element of Q, K, V and O."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    item_bytes: int

    def ends_bytes(self, num_new: int) -> int:
        """Q read and O written, for so many tokens."""
        return 2 * num_new * self.num_heads * self.head_dim * self.item_bytes

    def pair_bytes(self) -> int:
        """One token's K and V."""
        return 2 * self.num_kv_heads * self.head_dim * self.item_bytes


def bytes_with_scores(num_new: int, seq_len: int, shapes: AttentionShapes) -> int:
    """One step of one layer with all scores in memory: the last `num_new` of `seq_len` tokens are new."""
    scores = 4 * shapes.num_heads * num_new * seq_len
    return shapes.ends_bytes(num_new) + shapes.pair_bytes() * seq_len + 4 * scores


def bytes_in_tiles(num_new: int, seq_len: int, shapes: AttentionShapes, tile_rows: int = TILE_ROWS) -> int:
    """The same in tiles of `tile_rows` query positions."""
    num_computed = seq_len - num_new
    num_read = sum(min(seq_len, num_computed + first + tile_rows) for first in range(0, num_new, tile_rows))
    return shapes.ends_bytes(num_new) + shapes.pair_bytes() * num_read


def bytes_of_a_request(
    num_prompt: int, num_output: int, shapes: AttentionShapes, moved: Callable[[int, int, AttentionShapes], int]
) -> int:
    """A layer's bytes for a whole request: its prompt in one step, then a token a step; the last one is not read."""
    steps = range(num_prompt + 1, num_prompt + num_output)
    return moved(num_prompt, num_prompt, shapes) + sum(moved(1, seq_len, shapes) for seq_len in steps)
