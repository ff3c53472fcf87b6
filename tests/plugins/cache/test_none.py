"""The cache `none` indexes nothing, and says so."""

from __future__ import annotations

import pytest

from tokenloom.interfaces.cache import CacheContext, Reservation, Touch
from tokenloom.testing.stub_model import stub_request
from tokenloom_cache.none import NoneCache, NoneConfig

KEYS = [bytes([index]) * 32 for index in range(4)]


def test_nothing_is_ever_found() -> None:
    cache = NoneConfig().build(CacheContext(4, 16, 64))
    assert isinstance(cache, NoneCache)
    assert not cache.stores_prefixes
    assert not cache.insert(KEYS, 0, 3)
    assert cache.match(KEYS) == cache.match(KEYS, 2) == []
    assert (3 in cache, len(cache), cache.is_evictable(3)) == (False, 0, False)
    assert cache.reservation(stub_request("r", [1])) == Reservation()


def test_policy_has_nothing_to_order() -> None:
    policy = NoneCache().eviction_policy()
    assert list(policy.on_touch(Touch(3, 1, 0.0, 0, False))) == []
    assert list(policy.refresh(1.0)) == []
    policy.on_remove(3)


def test_removal_of_what_was_never_indexed_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="never indexed"):
        NoneCache().remove(3)
