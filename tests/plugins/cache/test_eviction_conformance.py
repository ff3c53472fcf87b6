"""The built-in eviction policies keep the contract."""

from __future__ import annotations

from tokenloom.testing import EvictionSuite


class TestLru(EvictionSuite):
    """Least recently used."""

    plugin = "lru"


class TestFifo(EvictionSuite):
    """First in, first out."""

    plugin = "fifo"


class TestLfu(EvictionSuite):
    """Least frequently used, all uses alike."""

    plugin = "lfu"


class TestAgeingLfu(EvictionSuite):
    """Least frequently used, old uses counting less."""

    plugin = "lfu"
    settings = {"half_life_s": 20.0}


class TestSlru(EvictionSuite):
    """Segmented LRU, with a protected segment that overflows."""

    plugin = "slru"
    settings = {"protected_share": 0.2}


class TestPriorityTtl(EvictionSuite):
    """Retention priorities that end."""

    plugin = "priority_ttl"
