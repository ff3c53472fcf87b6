"""The built-in caches keep the contract."""

from __future__ import annotations

from tokenloom.plugins import default_registry
from tokenloom.testing import CacheSuite
from tokenloom.testing.suite import build_choice


class TestHash(CacheSuite):
    """The flat index, with its default eviction policy."""

    plugin = "hash"


class TestContiguous(CacheSuite):
    """Reserved runs: held to finding nothing."""

    plugin = "contiguous"


class TestNone(CacheSuite):
    """No reuse: held to finding nothing."""

    plugin = "none"


class TestRadix(CacheSuite):
    """The tree, with its default eviction policy."""

    plugin = "radix"


class TestRadixWithSlru(CacheSuite):
    """The tree, with a policy that changes the keys of other blocks than the touched one."""

    plugin = "radix"
    settings = {
        "eviction": build_choice(default_registry().get("cache.eviction", "slru").info, {"protected_share": 0.3})
    }
