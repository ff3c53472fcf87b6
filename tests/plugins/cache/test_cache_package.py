"""What the package declares, and that its Configs are found under those names."""

from __future__ import annotations

import tokenloom_cache
from tokenloom.plugins import Registry
from tokenloom_cache.hash import HashConfig
from tokenloom_cache.lru import LruConfig
from tokenloom_cache.none import NoneConfig


def test_package_declares_its_plugins() -> None:
    registry = Registry.from_modules([tokenloom_cache])
    assert registry.names("cache") == ("hash", "none")
    assert registry.names("cache.eviction") == ("lru",)
    assert registry.load_config_class("cache", "hash") is HashConfig
    assert registry.load_config_class("cache", "none") is NoneConfig
    assert registry.load_config_class("cache.eviction", "lru") is LruConfig


def test_only_a_cache_that_stores_prefixes_claims_to() -> None:
    registry = Registry.from_modules([tokenloom_cache])
    flags = {name: registry.get("cache", name).info.capabilities.flags for name in ("hash", "none")}
    assert flags == {"hash": frozenset({"prefix_cache"}), "none": frozenset()}
    assert registry.get("cache", "hash").info.sub_kinds == {"cache.eviction": "lru"}
