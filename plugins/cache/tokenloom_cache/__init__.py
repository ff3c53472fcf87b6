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
            kind="cache.eviction",
            name="lru",
            config="tokenloom_cache.lru:LruConfig",
            contract=(1, 0),
            summary="Evicts the block that was used least recently; of one sequence, its tail first.",
        ),
    ]
