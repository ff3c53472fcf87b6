"""Keys of KV blocks: a SHA-256 chain over everything that a block's content depends on."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from tokenloom.interfaces.cache import BlockKey

__all__ = ["extend_keys", "root_key"]

_DOMAIN = b"tokenloom.kv.1"


def root_key(block_root: bytes, group_id: int, block_size: int, cache_salt: str = "", adapter: str = "") -> BlockKey:
    """The parent of a sequence's first block.

    Args:
        block_root: digest of weights, quantization, KV dtype and layout (`ModelFacts.block_root`).
        group_id: KV group; equal tokens in two groups never share a block.
        block_size: tokens per block.
        cache_salt: from the request; requests with different salts share nothing.
        adapter: identity of the adapter's content, "" for the plain model.

    Returns:
        32 bytes.
    """
    digest = hashlib.sha256(_DOMAIN)
    for part in (block_root, str(group_id).encode(), str(block_size).encode(), cache_salt.encode(), adapter.encode()):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def extend_keys(
    keys: list[BlockKey],
    root: BlockKey,
    token_ids: Sequence[int],
    block_size: int,
    num_blocks: int,
    lookahead: int = 0,
    start: int = 0,
) -> None:
    """Appends the keys of full blocks len(keys)..num_blocks-1 of a sequence to `keys`, in place.

    Args:
        keys: keys of the first blocks, already computed from the same root and tokens.
        root: from `root_key`; not read if there are keys.
        token_ids: the sequence from index `start` on; at least num_blocks * block_size + lookahead - start ids.
        block_size: tokens per block.
        num_blocks: number of keys wanted in the end.
        lookahead: tokens past t that the entry at t depends on. A block's key covers the tokens that follow it, too, or
            two sequences that part right behind it would share a block whose last entries differ.
        start: at most len(keys) * block_size.
    """
    needed, end = num_blocks * block_size + (lookahead if num_blocks else 0), start + len(token_ids)
    assert needed <= end, f"{num_blocks} blocks of {block_size} + {lookahead} exceed {end} ids"
    assert start <= len(keys) * block_size, f"ids from {start} on are given, {len(keys)} blocks have keys"
    parent = keys[-1] if keys else root
    for index in range(len(keys), num_blocks):
        first = index * block_size - start
        block = array("i", token_ids[first : first + block_size + lookahead]).tobytes()
        parent = hashlib.sha256(parent + block).digest()
        keys.append(parent)
