"""Built-in prefix caches and eviction policies."""

from __future__ import annotations

from tokenloom.interfaces.contract import Capabilities, PluginInfo
from tokenloom.plugins import hookimpl

__all__ = ["tokenloom_plugins"]


@hookimpl
def tokenloom_plugins() -> list[PluginInfo]:
    """Declares the plugins of this package; the modules behind them load when chosen."""
    return [
        PluginInfo(
            kind="cache",
            name="none",
            config="tokenloom_cache.none:NoneConfig",
            contract=(1, 0),
            summary="Paged KV memory without any reuse between requests.",
        ),
        PluginInfo(
            kind="cache",
            name="contiguous",
            config="tokenloom_cache.contiguous:ContiguousConfig",
            contract=(1, 1),
            summary="The classical baseline: one reserved run of the maximum length for each request.",
        ),
        PluginInfo(
            kind="cache",
            name="hash",
            config="tokenloom_cache.hash:HashConfig",
            contract=(1, 1),
            summary="Paged KV memory that finds equal prefixes again by a hash of each full block.",
            capabilities=Capabilities(flags=frozenset({"prefix_cache"})),
            sub_kinds={"cache.eviction": "lru"},
        ),
        PluginInfo(
            kind="cache",
            name="radix",
            config="tokenloom_cache.radix:RadixConfig",
            contract=(1, 1),
            summary="Paged KV memory that finds equal prefixes again in a radix tree, and evicts its leaves only.",
            capabilities=Capabilities(flags=frozenset({"prefix_cache"})),
            sub_kinds={"cache.eviction": "lru"},
        ),
        *_eviction_policies(),
    ]


def _eviction_policies() -> list[PluginInfo]:
    return [
        _eviction_policy(
            "lru",
            "tokenloom_cache.lru:LruConfig",
            "Evicts the block that was used least recently; of one sequence, its tail first.",
            "recency",
        ),
        _eviction_policy(
            "fifo",
            "tokenloom_cache.fifo:FifoConfig",
            "Evicts the block that was published first, however often it was used since.",
        ),
        _eviction_policy(
            "lfu",
            "tokenloom_cache.lfu:LfuConfig",
            "Evicts the block that was used least often; with a half-life, old uses count less.",
        ),
        _eviction_policy(
            "slru",
            "tokenloom_cache.slru:SlruConfig",
            "Evicts blocks that were used only once before those that were found again, each by last use.",
            "recency",
        ),
        _eviction_policy(
            "priority_ttl",
            "tokenloom_cache.priority_ttl:PriorityTtlConfig",
            "Evicts by the retention priority that requests ask for until it expires, then by last use.",
            "retention",
        ),
    ]


def _eviction_policy(name: str, config: str, summary: str, *flags: str) -> PluginInfo:
    abilities = Capabilities(flags=frozenset({"tail_first", *flags}))
    return PluginInfo("cache.eviction", name, config, (1, 0), summary, capabilities=abilities)
