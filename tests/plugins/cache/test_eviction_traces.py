"""Which blocks of a small trace are found again under each eviction policy, worked out by hand."""

from __future__ import annotations

import pytest

from tests.plugins.cache.served_pool import ServedPool, build_cache, hits_of

CACHES = pytest.mark.parametrize("cache", ["hash", "radix"])


@CACHES
@pytest.mark.parametrize(
    ("eviction", "expected"),
    [
        # D evicts B, used longest ago; the last B evicts C.
        ("lru", "...+..++"),
        # D evicts A, published first; the last A evicts B.
        ("fifo", "...+.+.+"),
        ("lfu", "...+..++"),
        ("slru", "...+..++"),
        ("priority_ttl", "...+..++"),
    ],
)
def test_one_block_used_again_among_four(cache: str, eviction: str, expected: str) -> None:
    assert hits_of("ABCADBAD", cache, eviction, 3) == expected


@CACHES
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
def test_frequent_block_that_was_not_used_lately(
    cache: str, eviction: str, settings: dict[str, object], expected: str
) -> None:
    assert hits_of("AAABCBCDA", cache, eviction, 3, **settings) == expected


@CACHES
@pytest.mark.parametrize(
    ("eviction", "settings", "expected"),
    [
        # C's second use takes A back to probation. Out go A, D, E for E, F, G; then F for A. B and C stay.
        ("slru", {"protected_share": 0.5}, ".+.+.+.....++"),
        # One block is protected: first A, then B, then C. Out go A, B, D for E, F, G; then E for A, F for B.
        ("slru", {"protected_share": 0.25}, ".+.+.+......+"),
        # Out go A, B, C for E, F, G; then D for A, E for B, F for C.
        ("lru", {}, ".+.+.+......."),
        # D, E, F were used once: they go for E, F, G.
        ("lfu", {}, ".+.+.+....+++"),
    ],
)
def test_burst_of_new_blocks_after_some_that_were_used_twice(
    cache: str, eviction: str, settings: dict[str, object], expected: str
) -> None:
    assert hits_of("AABBCCDEFGABC", cache, eviction, 4, **settings) == expected


@CACHES
def test_retention_keeps_a_block_until_its_time_has_passed(cache: str) -> None:
    served = ServedPool(build_cache(cache, "priority_ttl", 4), 4)
    kept = {"retention_priority": 5, "retention_ttl_s": 10.0}
    assert served.serve("A", **kept) == 0  # at 1 s, so until 11 s
    assert [served.serve(letter) for letter in "BCDEF"] == [0] * 5, "they evict each other"
    assert served.serve("A") == 1, "at 7 s; a use without priority takes nothing away"
    assert [served.serve(letter) for letter in "EGH"] == [1, 0, 0], "at 10 s H evicts E: A is the oldest, but kept"
    assert served.serve("I") == 0, "at 11 s"
    assert served.serve("A") == 0, "it went for I"


@CACHES
def test_tail_goes_first_of_what_one_commit_published(cache: str) -> None:
    for eviction in ("lru", "fifo", "lfu", "slru", "priority_ttl"):
        served = ServedPool(build_cache(cache, eviction, 6), 6)
        served.serve("ABCDE")
        served.serve("XY")
        assert served.serve("ABCDE") == 3, f"{eviction}: D and E went for X and Y"
