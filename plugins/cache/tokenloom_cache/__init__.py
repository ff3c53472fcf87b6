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
            name="hash",
            config="tokenloom_cache.hash:HashConfig",
            contract=(1, 0),
            summary="Paged KV memory that finds equal prefixes again by a hash of each full block.",
            capabilities=Capabilities(flags=frozenset({"prefix_cache"})),
            sub_kinds={"cache.eviction": "lru"},
        ),
        PluginInfo(
            kind="cache",
            name="radix",
            config="tokenloom_cache.radix:RadixConfig",
            contract=(1, 0),
            summary="Paged KV memory that finds equal prefixes again in a radix tree, and evicts its leaves only.",
            capabilities=Capabilities(flags=frozenset({"prefix_cache"})),
            sub_kinds={"cache.eviction": "lru"},
        ),
        PluginInfo(
            kind="cache.eviction",
            name="lru",
            config="tokenloom_cache.lru:LruConfig",
            contract=(1, 0),
            summary="Evicts the block that was used least recently; of one sequence, its tail first.",
            capabilities=Capabilities(flags=frozenset({"recency", "tail_first"})),
        ),
        PluginInfo(
            kind="cache.eviction",
            name="fifo",
            config="tokenloom_cache.fifo:FifoConfig",
            contract=(1, 0),
            summary="Evicts the block that was published first, however often it was used since.",
            capabilities=Capabilities(flags=frozenset({"tail_first"})),
        ),
        PluginInfo(
            kind="cache.eviction",
            name="lfu",
            config="tokenloom_cache.lfu:LfuConfig",
            contract=(1, 0),
            summary="Evicts the block that was used least often; with a half-life, old uses count less.",
            capabilities=Capabilities(flags=frozenset({"tail_first"})),
        ),
        PluginInfo(
            kind="cache.eviction",
            name="slru",
            config="tokenloom_cache.slru:SlruConfig",
            contract=(1, 0),
            summary="Evicts blocks that were used only once before those that were found again, each by last use.",
            capabilities=Capabilities(flags=frozenset({"recency", "tail_first"})),
        ),
        PluginInfo(
            kind="cache.eviction",
            name="priority_ttl",
            config="tokenloom_cache.priority_ttl:PriorityTtlConfig",
            contract=(1, 0),
            summary="Evicts by the retention priority that requests ask for until it expires, then by last use.",
            capabilities=Capabilities(flags=frozenset({"retention", "tail_first"})),
        ),
    ]
