"""Retention: which promise is in force, and when it ends."""

from __future__ import annotations

import math
import random

from tokenloom.interfaces.cache import CacheContext, EvictionKey, EvictionPolicy, Touch
from tokenloom_cache.priority_ttl import PriorityTtlConfig


def built() -> EvictionPolicy:
    return PriorityTtlConfig().build(CacheContext(4, 64, 64))


def touch(policy: EvictionPolicy, now_s: float, priority: int, ttl_s: float | None, block_id: int = 1) -> EvictionKey:
    ((touched, key),) = policy.on_touch(Touch(block_id, int(now_s), now_s, 2, True, priority, ttl_s))
    assert touched == block_id
    return key


def test_priority_comes_first_and_recency_second() -> None:
    policy = built()
    keys = [
        touch(policy, *use, block_id=number) for number, use in enumerate([(1, 0, None), (2, 0, None), (0, 1, None)])
    ]
    assert keys == [(0, 1, -2), (0, 2, -2), (1, 0, -2)]
    assert touch(policy, 3, -1, None, block_id=9) < min(keys)


def test_priority_ends_with_its_time_and_not_before() -> None:
    policy = built()
    assert touch(policy, 1.0, 5, 10.0) == (5, 1, -2)
    assert list(policy.refresh(10.999)) == []
    assert list(policy.refresh(11.0)) == [(1, (0, 1, -2))]
    assert list(policy.refresh(12.0)) == [], "it ends once"


def test_each_use_starts_the_time_anew() -> None:
    policy = built()
    touch(policy, 1.0, 5, 10.0)
    touch(policy, 8.0, 5, 10.0)
    assert list(policy.refresh(17.9)) == []
    assert dict(policy.refresh(18.0)) == {1: (0, 8, -2)}


def test_another_request_takes_nothing_away() -> None:
    policy = built()
    touch(policy, 1.0, 5, 10.0)
    assert touch(policy, 2.0, 0, None) == (5, 2, -2)
    assert touch(policy, 3.0, 5, 1.0) == (5, 3, -2)
    assert list(policy.refresh(5.0)) == [], "the longer of two equal promises holds"
    assert dict(policy.refresh(11.0)) == {1: (0, 3, -2)}


def test_lower_promise_takes_over_where_the_higher_ends() -> None:
    policy = built()
    touch(policy, 0.0, 3, None)
    touch(policy, 0.0, 9, 5.0)
    assert touch(policy, 1.0, 6, 9.0) == (9, 1, -2)
    assert dict(policy.refresh(5.0)) == {1: (6, 1, -2)}
    assert dict(policy.refresh(10.0)) == {1: (3, 1, -2)}
    assert list(policy.refresh(1e9)) == []


def test_touch_after_the_end_needs_no_refresh() -> None:
    policy = built()
    touch(policy, 1.0, 5, 2.0)
    assert touch(policy, 4.0, 0, None) == (0, 4, -2)
    assert list(policy.refresh(9.0)) == []


def test_removed_block_breaks_its_promises() -> None:
    policy = built()
    touch(policy, 1.0, 5, 2.0)
    policy.on_remove(1)
    policy.on_remove(99)
    assert touch(policy, 1.5, 0, None) == (0, 1, -2)
    assert list(policy.refresh(9.0)) == []


def test_random_promises_are_kept_as_a_list_of_them_says() -> None:
    """Up to seven different priorities, so that none is given up."""
    rng, policy = random.Random(1), built()
    promises: dict[int, list[tuple[int, float]]] = {}
    told: dict[int, EvictionKey] = {}
    for step in range(4_000):
        now_s, block_id = step / 4, rng.randrange(12)
        if rng.random() < 0.05:
            policy.on_remove(block_id)
            promises.pop(block_id, None)
            told.pop(block_id, None)
        elif rng.random() < 0.5:
            priority, ttl_s = rng.randrange(-2, 5), rng.choice([None, 0.5, 3.0, 40.0])
            promises.setdefault(block_id, []).append((priority, now_s + (math.inf if ttl_s is None else ttl_s)))
            told[block_id] = touch(policy, now_s, priority, ttl_s, block_id)
        told.update(policy.refresh(now_s))
        for known, made in promises.items():
            expected = max((priority for priority, end_s in made if end_s > now_s), default=0)
            assert told[known][0] == expected, f"block {known} at {now_s} s: {made}"


def test_promises_to_one_block_are_bounded() -> None:
    policy = built()
    for number in range(1_000):
        touch(policy, 0.0, 1_000 - number, 1.0 + number)
    assert len(policy._promises[1]) == 8  # type: ignore[attr-defined]
    assert dict(policy.refresh(1.0))[1][0] == 999
