"""LRU: the block used longest ago goes first; of one commit's blocks the deepest."""

from __future__ import annotations

from tokenloom.interfaces.cache import CacheContext, EvictionKey, Touch
from tokenloom_cache.lru import Lru, LruConfig


def key_of(policy: Lru, block_id: int, tick: int, depth: int, is_hit: bool = False) -> EvictionKey:
    ((touched, key),) = policy.on_touch(Touch(block_id, tick, 0.0, depth, is_hit))
    assert touched == block_id
    return key


def test_older_commits_go_first_whatever_their_depth() -> None:
    policy = Lru()
    assert key_of(policy, 1, 1, 0) < key_of(policy, 2, 2, 9)


def test_of_one_commit_the_deepest_goes_first() -> None:
    policy = Lru()
    keys = {depth: key_of(policy, depth, 3, depth) for depth in range(4)}
    assert sorted(keys, key=lambda depth: keys[depth]) == [3, 2, 1, 0]


def test_hit_counts_as_any_other_use() -> None:
    policy = Lru()
    assert key_of(policy, 1, 4, 2, is_hit=True) == key_of(policy, 2, 4, 2)


def test_time_alone_changes_nothing() -> None:
    policy = LruConfig().build(CacheContext(4, 16, 64))
    assert isinstance(policy, Lru)
    key_of(policy, 1, 1, 0)
    assert list(policy.refresh(1e9)) == []
    policy.on_remove(1)
    policy.on_remove(99)
