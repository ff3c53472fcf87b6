"""SLRU: promotion by a hit, demotion of the least recently used."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tokenloom.interfaces.cache import CacheContext, EvictionKey, Touch
from tokenloom_cache.slru import Slru, SlruConfig


def touch(policy: Slru, block_id: int, tick: int, *, is_hit: bool = True, depth: int = 0) -> dict[int, EvictionKey]:
    return dict(policy.on_touch(Touch(block_id, tick, 0.0, depth, is_hit)))


def test_hit_protects_and_a_release_does_not() -> None:
    policy = Slru(2)
    assert touch(policy, 1, 1, is_hit=False) == {1: (0, 1, 0)}
    assert touch(policy, 1, 2, is_hit=False) == {1: (0, 2, 0)}
    assert touch(policy, 1, 3) == {1: (1, 3, 0)}
    assert touch(policy, 1, 4, is_hit=False) == {1: (1, 4, 0)}, "it stays protected"


def test_overflow_takes_the_least_recently_used_back_as_the_newest_on_probation() -> None:
    policy = Slru(2)
    for block_id in (1, 2):
        touch(policy, block_id, block_id)
    touch(policy, 1, 5, is_hit=False)
    assert touch(policy, 3, 6, depth=4) == {3: (1, 6, -4), 2: (0, 6, 0)}
    assert touch(policy, 2, 7) == {2: (1, 7, 0), 1: (0, 7, 0)}


def test_of_one_commit_the_deepest_is_taken_back() -> None:
    """A chain that is longer than the segment keeps its head there."""
    policy, keys = Slru(3), dict[int, EvictionKey]()
    for depth in range(6):
        keys.update(touch(policy, 10 + depth, 4, depth=depth))
    assert {block_id for block_id, key in keys.items() if key[0] == 1} == {10, 11, 12}
    assert sorted(keys, key=lambda block_id: keys[block_id]) == [15, 14, 13, 12, 11, 10]


def test_removed_block_makes_room_in_the_segment() -> None:
    policy = Slru(1)
    touch(policy, 1, 1)
    policy.on_remove(1)
    policy.on_remove(99)
    assert touch(policy, 2, 2) == {2: (1, 2, 0)}
    assert touch(policy, 1, 3, is_hit=False) == {1: (0, 3, 0)}, "it is new"


@pytest.mark.parametrize(("share", "num_blocks", "expected"), [(0.8, 11, 8), (0.5, 4, 1), (0.01, 2, 1)])
def test_share_is_of_the_blocks_that_can_be_used(share: float, num_blocks: int, expected: int) -> None:
    policy = SlruConfig(protected_share=share).build(CacheContext(4, num_blocks, 64))
    num_protected = set[int]()
    for block_id in range(1, 20):
        for changed, key in policy.on_touch(Touch(block_id, block_id, 0.0, 0, True)):
            num_protected = num_protected | {changed} if key[0] else num_protected - {changed}
    assert len(num_protected) == expected


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan"), True])
def test_config_refuses_what_makes_no_sense(share: float) -> None:
    with pytest.raises(ValidationError, match="protected_share"):
        SlruConfig(protected_share=share)
