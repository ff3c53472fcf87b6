"""Built-in schedulers: who gets how many tokens in a step."""

from __future__ import annotations

from tokenloom.interfaces.contract import PluginInfo
from tokenloom.plugins import hookimpl

__all__ = ["tokenloom_plugins"]


@hookimpl
def tokenloom_plugins() -> list[PluginInfo]:
    """Declares the plugins of this package; the modules behind them load when chosen."""
    return [
        PluginInfo(
            kind="scheduler",
            name="fcfs",
            config="tokenloom_schedulers.fcfs:FcfsConfig",
            contract=(1, 0),
            summary="First come, first served: continuous batching with chunked prefill and recompute preemption.",
            sub_kinds={"scheduler.victim": "last_in"},
        ),
        PluginInfo(
            kind="scheduler.victim",
            name="last_in",
            config="tokenloom_schedulers.last_in:LastInConfig",
            contract=(1, 0),
            summary="Preempts the request that was admitted last.",
        ),
    ]
