"""Built-in executors: where the model runs."""

from __future__ import annotations

from tokenloom.interfaces.contract import Capabilities, PluginInfo
from tokenloom.plugins import hookimpl

__all__ = ["tokenloom_plugins"]


@hookimpl
def tokenloom_plugins() -> list[PluginInfo]:
    """Declares the executors; the modules behind them load when chosen."""
    return [
        PluginInfo(
            kind="executor",
            name="local",
            config="tokenloom.executors.local:LocalExecutorConfig",
            contract=(1, 2),
            summary="Runs the model in this process; a step is finished when launch returns.",
            capabilities=Capabilities(devices=("cpu", "cuda"), flags=frozenset({"swap", "block_copy"})),
        ),
        PluginInfo(
            kind="executor",
            name="simulated",
            config="tokenloom.executors.simulated:SimulatedExecutorConfig",
            contract=(1, 2),
            summary="No model: synthetic tokens in virtual time, for `tokenloom simulate`.",
            capabilities=Capabilities(flags=frozenset({"swap", "block_copy"})),
        ),
    ]
