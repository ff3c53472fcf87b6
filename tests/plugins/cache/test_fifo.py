"""FIFO: the key is that of the publication, whatever happens later."""

from __future__ import annotations

from tokenloom.interfaces.cache import CacheContext, Touch
from tokenloom_cache.fifo import Fifo, FifoConfig


def test_key_stays_that_of_the_publication() -> None:
    policy = FifoConfig().build(CacheContext(4, 16, 64))
    assert isinstance(policy, Fifo)
    assert list(policy.on_touch(Touch(7, 3, 0.0, 2, False))) == [(7, (3, -2))]
    assert list(policy.on_touch(Touch(7, 9, 5.0, 2, True))) == [(7, (3, -2))]
    policy.on_remove(7)
    policy.on_remove(99)
    assert list(policy.on_touch(Touch(7, 10, 6.0, 4, False))) == [(7, (10, -4))]
