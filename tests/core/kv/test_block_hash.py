"""Block keys: everything that a block's content depends on is in its key, and nothing else is."""

from __future__ import annotations

import hashlib
from itertools import pairwise, product

import pytest

from tokenloom.interfaces.cache import BlockKey
from tokenloom.kv.block_hash import extend_keys, root_key

ROOT = root_key(b"weights", 0, 4)


def keys_of(tokens: list[int], root: bytes = ROOT, block_size: int = 4, lookahead: int = 0) -> list[BlockKey]:
    keys: list[BlockKey] = []
    extend_keys(keys, root, tokens, block_size, (len(tokens) - lookahead) // block_size, lookahead)
    return keys


def test_keys_are_32_bytes_and_differ_from_block_to_block() -> None:
    keys = keys_of([7] * 12)
    assert [len(key) for key in keys] == [32, 32, 32]
    assert len(set(keys)) == 3


def test_keys_extended_in_pieces_equal_keys_made_at_once() -> None:
    tokens = list(range(20))
    keys: list[BlockKey] = []
    for count in (0, 1, 1, 3, 5):
        extend_keys(keys, ROOT, tokens, 4, count)
        assert len(keys) == count
    assert keys == keys_of(tokens)


def test_key_covers_all_tokens_before_the_block() -> None:
    tokens = list(range(16))
    for position in range(16):
        changed = list(tokens)
        changed[position] += 100
        same = [a == b for a, b in zip(keys_of(tokens), keys_of(changed), strict=True)]
        assert same == [index < position // 4 for index in range(4)]


@pytest.mark.parametrize("position", range(7))
def test_key_is_not_fooled_by_a_polynomial_collision(position: int) -> None:
    """31 * t[j] + t[j + 1] is the same for (t[j] - 1, t[j + 1] + 31), also across a block's border."""
    tokens = [100] * 8
    forged = list(tokens)
    forged[position] -= 1
    forged[position + 1] += 31
    assert keys_of(tokens)[-1] != keys_of(forged)[-1]


def test_key_is_not_fooled_by_python_hash_or_by_order() -> None:
    assert hash((-1,)) == hash((-2,))
    assert keys_of([1, 2, 3, 4]) != keys_of([2, 1, 3, 4])
    assert keys_of([0, 0, 0, 1]) != keys_of([0, 0, 0, 256])
    assert keys_of([0, 0, 0, 1]) != keys_of([0, 0, 0, 1 << 24])


def test_root_keys_differ_in_every_part_and_parts_do_not_run_together() -> None:
    roots = {
        root_key(*parts)
        for parts in product((b"a", b"ab", b""), (0, 1, 11), (1, 16, 116), ("", "a", "ab"), ("", "b", "ab"))
    }
    assert len(roots) == 3**5
    assert root_key(b"w", 0, 4, "ab", "c") != root_key(b"w", 0, 4, "a", "bc")


def test_lookahead_key_covers_the_tokens_behind_the_block() -> None:
    tokens = list(range(10))
    for lookahead in (1, 2):
        for position in range(10):
            changed = list(tokens)
            changed[position] += 100
            before, after = (keys_of(t, lookahead=lookahead) for t in (tokens, changed))
            same = [a == b for a, b in zip(before, after, strict=True)]
            assert same == [position >= (index + 1) * 4 + lookahead for index in range(2)]


def test_lookahead_needs_the_tokens_it_looks_at() -> None:
    with pytest.raises(AssertionError, match="exceed"):
        extend_keys([], ROOT, [1, 2, 3, 4], 4, 1, lookahead=1)
    keys: list[BlockKey] = []
    extend_keys(keys, ROOT, [], 4, 0, lookahead=1)
    assert keys == []


def test_keys_chain_from_their_parent_digest() -> None:
    """The documented construction: SHA-256 of the parent digest and the block's ids as int32."""
    tokens = [1, 2, 3, 4, 5, 6, 7, 8]
    keys = keys_of(tokens)
    for (parent, key), block in zip(pairwise([ROOT, *keys]), (tokens[:4], tokens[4:]), strict=True):
        ids = b"".join(token.to_bytes(4, "little") for token in block)
        assert key == hashlib.sha256(parent + ids).digest()
