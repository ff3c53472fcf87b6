"""The pluggy hooks of tokenloom: how a package declares its plugins, and two coarse events of an engine's life.

Hooks stay off the token path. A package implements them in the module that its entry point of group `tokenloom` names:

    from tokenloom.plugins import PluginInfo, hookimpl

    @hookimpl
    def tokenloom_plugins() -> list[PluginInfo]:
        return [PluginInfo("scheduler", "sjf", config="my_package.sjf:SjfConfig", contract=(1, 0), summary="...")]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pluggy

from tokenloom.interfaces.contract import PluginInfo
from tokenloom.interfaces.model import ModelInfo

__all__ = [
    "ENTRY_POINT_GROUP",
    "hookimpl",
    "hookspec",
    "tokenloom_config_dir",
    "tokenloom_engine_started",
    "tokenloom_engine_stopped",
    "tokenloom_models",
    "tokenloom_plugins",
]

ENTRY_POINT_GROUP = "tokenloom"
"""The entry-point group in which packages name their plugin modules; also pluggy's project name."""

hookspec = pluggy.HookspecMarker(ENTRY_POINT_GROUP)
hookimpl = pluggy.HookimplMarker(ENTRY_POINT_GROUP)


@hookspec
def tokenloom_plugins() -> list[PluginInfo]:
    """Declares the plugins of this package.

    Called once, at discovery. It must be cheap: the module that holds it imports neither torch nor the plugin classes.
    """
    raise NotImplementedError


@hookspec
def tokenloom_models() -> list[ModelInfo]:
    """Declares the model families of this package; as cheap as `tokenloom_plugins`."""
    raise NotImplementedError


@hookspec
def tokenloom_config_dir() -> str | Path:
    """Names the folder that holds this package's Hydra groups, e.g. `<package>/conf` with `scheduler/sjf.yaml` in it.

    An option that another package or the core already has under the same group and name is an error.
    """
    raise NotImplementedError


@hookspec
def tokenloom_engine_started(summary: Mapping[str, Any]) -> None:
    """Tells that an engine is ready. `summary` holds plain data: plugins, device, dtype, memory in bytes."""


@hookspec
def tokenloom_engine_stopped(summary: Mapping[str, Any]) -> None:
    """Tells that an engine has stopped. `summary` holds plain data: plugins, and totals (`EngineStats`)."""
