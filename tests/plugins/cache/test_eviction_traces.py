"""Which blocks of a small trace are found again under each eviction policy, worked out by hand."""

from __future__ import annotations

import pytest

from tests.plugins.cache.served_pool import ServedPool, build_cache, hits_of


@pytest.mark.parametrize(
    ("eviction", "expected"),
    [
        # D evicts B, used longest ago; the last B evicts C.
        ("lru", "...+..+"),
        # D evicts A, published first; the last A evicts B.
        ("fifo", "...+.+."),
        ("lfu", "...+..+"),
        ("slru", "...+..+"),
        ("priority_ttl", "...+..+"),
    ],
)
def test_one_block_used_again_among_four(eviction: str, expected: str) -> None:
    assert hits_of("ABCADBA", eviction, 3) == expected


@pytest.mark.parametrize(
    ("eviction", "settings", "expected"),
    [
        # A was used three times, B and C twice: D evicts B, the older of these.
        ("lfu", {}, ".++..++.+"),
        # Uses at 1, 2, 3 s are worth 2 + 4 + 8, those of B at 4 and 6 s 16 + 64: D evicts A.
        ("lfu", {"half_life_s": 1.0}, ".++..++.."),
        # So long a half-life tells hardly one use from another.
        ("lfu", {"half_life_s": 1_000.0}, ".++..++.+"),
        ("lru", {}, ".++..++.."),
        ("fifo", {}, ".++..++.."),
    ],
)
def test_frequent_block_that_was_not_used_lately(eviction: str, settings: dict[str, object], expected: str) -> None:
    assert hits_of("AAABCBCDA", eviction, 3, **settings) == expected


@pytest.mark.parametrize(
    ("eviction", "settings", "expected"),
    [
        # C's hit takes A back to probation; E evicts A, F evicts D, A evicts E: B and C stay.
        ("slru", {"protected_share": 0.5}, ".+.+.+.....++"),
        # One protected block: C. D still fits; E evicts A, F evicts B, then A evicts D, B evicts E.
        ("slru", {"protected_share": 0.25}, ".+.+.+......+"),
        # E evicts A, F evicts B, A evicts C, B evicts D, C evicts E.
        ("lru", {}, ".+.+.+......."),
        # All used once go before all used twice: F evicts D, E is gone, too, when A ... A evicted by E.
        ("lfu", {}, ".+.+.+.....++"),
    ],
)
def test_burst_of_new_blocks_after_some_that_were_used_twice(
    eviction: str, settings: dict[str, object], expected: str
) -> None:
    assert hits_of("AABBCCDEFGABC"[: len(expected)], eviction, 4, **settings) == expected
