"""LFU: what counts as a use, and how uses age."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from tokenloom.interfaces.cache import CacheContext, EvictionKey, EvictionPolicy, Touch
from tokenloom_cache.lfu import LfuConfig


def built(half_life_s: float | None = None) -> EvictionPolicy:
    return LfuConfig(half_life_s=half_life_s).build(CacheContext(4, 16, 64))


def key_of(policy: EvictionPolicy, block_id: int, now_s: float, *, is_hit: bool = True) -> EvictionKey:
    ((touched, key),) = policy.on_touch(Touch(block_id, int(now_s), now_s, 1, is_hit))
    assert touched == block_id
    return key


def test_publication_and_hits_are_uses_and_releases_are_not() -> None:
    policy = built()
    assert key_of(policy, 1, 1.0, is_hit=False) == (1, 1, -1)
    assert key_of(policy, 1, 2.0, is_hit=False) == (1, 2, -1)
    assert key_of(policy, 1, 3.0) == (2, 3, -1)
    assert key_of(policy, 1, 4.0, is_hit=False) == (2, 4, -1)


@pytest.mark.parametrize("start_s", [0.0, 1.7e9])
def test_use_counts_half_after_each_half_life(start_s: float) -> None:
    """Uses at 0, 5 and 10 s with a half-life of 5 s are worth 1/4 + 1/2 + 1 uses at 10 s."""
    policy = built(5.0)
    for now_s in (0.0, 5.0):
        key_of(policy, 1, start_s + now_s)
    worth = key_of(policy, 1, start_s + 10.0)[0] - key_of(policy, 2, start_s + 10.0)[0]
    assert worth == pytest.approx(math.log2(1.75), abs=1e-6)


def test_old_favourite_is_overtaken_only_with_a_half_life() -> None:
    for half_life_s, expected in ((None, [2, 1]), (10.0, [1, 2])):
        policy, keys = built(half_life_s), dict[int, EvictionKey]()
        for number in range(100):
            keys[1] = key_of(policy, 1, number / 10)
        for number in range(3):
            keys[2] = key_of(policy, 2, 200.0 + number)
        assert sorted(keys, key=lambda block_id: keys[block_id]) == expected


def test_ages_of_years_do_not_overflow() -> None:
    policy = built(0.001)
    first = key_of(policy, 1, 0.0)
    later = key_of(policy, 1, 1e9)
    assert all(math.isfinite(part) for part in (*first, *later))
    assert later > first


@pytest.mark.parametrize("half_life_s", [0.0, -1.0, math.inf, math.nan, True])
def test_config_refuses_what_makes_no_sense(half_life_s: float) -> None:
    with pytest.raises(ValidationError, match="half_life_s"):
        LfuConfig(half_life_s=half_life_s)
