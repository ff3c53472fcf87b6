"""What the package declares, and that its Configs are found under those names."""

from __future__ import annotations

import pytest

import tokenloom_cache
from tokenloom.interfaces.contract import PluginConfig
from tokenloom.plugins import Registry
from tokenloom_cache.contiguous import ContiguousConfig
from tokenloom_cache.fifo import FifoConfig
from tokenloom_cache.hash import HashConfig
from tokenloom_cache.lfu import LfuConfig
from tokenloom_cache.lru import LruConfig
from tokenloom_cache.none import NoneConfig
from tokenloom_cache.priority_ttl import PriorityTtlConfig
from tokenloom_cache.radix import RadixConfig
from tokenloom_cache.slru import SlruConfig

CACHES = {"contiguous": ContiguousConfig, "hash": HashConfig, "none": NoneConfig, "radix": RadixConfig}
EVICTORS = {
    "fifo": FifoConfig,
    "lfu": LfuConfig,
    "lru": LruConfig,
    "priority_ttl": PriorityTtlConfig,
    "slru": SlruConfig,
}


@pytest.mark.parametrize(("kind", "configs"), [("cache", CACHES), ("cache.eviction", EVICTORS)])
def test_package_declares_its_plugins(kind: str, configs: dict[str, type[PluginConfig]]) -> None:
    registry = Registry.from_modules([tokenloom_cache])
    assert registry.names(kind) == tuple(sorted(configs))
    for name, config_class in configs.items():
        assert registry.load_config_class(kind, name) is config_class


def test_only_a_cache_that_stores_prefixes_claims_to() -> None:
    registry = Registry.from_modules([tokenloom_cache])
    infos = {name: registry.get("cache", name).info for name in CACHES}
    assert {name for name, info in infos.items() if "prefix_cache" in info.capabilities.flags} == {"hash", "radix"}
    assert {name for name, info in infos.items() if info.sub_kinds == {"cache.eviction": "lru"}} == {"hash", "radix"}
