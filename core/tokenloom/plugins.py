"""The registry of plugins: what is installed, by kind and name, and where each Config class lives.

Importing this module imports no plugin and no torch; `default_registry()` reads the installed packages once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any, final

from tokenloom.errors import ConfigError, ContractVersionError, PluginError, did_you_mean
from tokenloom.hookspecs import hookimpl
from tokenloom.interfaces.contract import Capabilities, PluginConfig, PluginInfo
from tokenloom.interfaces.model import ModelInfo
from tokenloom.plugin_discovery import (
    BrokenPlugin,
    ConfigFolder,
    Found,
    RegisteredModel,
    RegisteredPlugin,
    discover,
    read_modules,
)
from tokenloom.plugin_target import load_target

__all__ = [
    "BrokenPlugin",
    "Capabilities",
    "ConfigFolder",
    "ModelInfo",
    "PluginInfo",
    "RegisteredModel",
    "RegisteredPlugin",
    "Registry",
    "default_registry",
    "hookimpl",
]

_logger = logging.getLogger(__name__)


@final
class Registry:
    """Every plugin that was found, by kind and name. Read-only after construction."""

    def __init__(self, found: Found) -> None:
        self._by_key = {(plugin.info.kind, plugin.info.name): plugin for plugin in found.plugins}
        self._manager = found.manager
        self._has_warned = False
        self.broken: tuple[BrokenPlugin, ...] = found.broken
        self.models: tuple[RegisteredModel, ...] = found.models
        self.config_folders: tuple[ConfigFolder, ...] = found.config_folders

    @classmethod
    def discover(cls, points: Iterable[EntryPoint] | None = None) -> Registry:
        """Builds a registry from installed entry points, or from the given ones."""
        return cls(discover(points))

    @classmethod
    def from_modules(cls, modules: Iterable[ModuleType]) -> Registry:
        """Builds a registry from modules that hold hook implementations; meant for tests and embedding."""
        return cls(read_modules(modules))

    def plugins(self, kind: str | None = None) -> tuple[RegisteredPlugin, ...]:
        """All plugins, refused ones included, or those of one kind."""
        return tuple(plugin for plugin in self._by_key.values() if kind is None or plugin.info.kind == kind)

    def names(self, kind: str) -> tuple[str, ...]:
        """Sorted names of the plugins of `kind` that this core can run."""
        return tuple(sorted(plugin.info.name for plugin in self.plugins(kind) if plugin.refusal is None))

    def get(self, kind: str, name: str) -> RegisteredPlugin:
        """Returns one plugin.

        Raises:
            ConfigError: if no plugin has this name and every installed package loaded.
            PluginError: if no plugin has this name and a package that failed to import may hold it.
            ContractVersionError: if the plugin was written for a contract that this core does not speak.
        """
        plugin = self._by_key.get((kind, name))
        if plugin is None:
            raise self.unknown(kind, name, self.names(kind))
        if plugin.refusal is not None:
            raise ContractVersionError(
                f"{plugin.label} (package {plugin.package} {plugin.version}) cannot be used: {plugin.refusal}; "
                f"install a release of {plugin.package} that fits this core"
            )
        return plugin

    def unknown(self, kind: str, name: str, existing: Iterable[str]) -> ConfigError | PluginError:
        """The error for a name that does not exist, listing what does and which packages failed to import."""
        names = sorted(existing)
        message = f"{kind}={name}: no such {kind}; choose one of {', '.join(names) or '(none installed)'}."
        message += did_you_mean(name, names)
        if not self.broken:
            return ConfigError(message)
        failed = "\n".join(f"  - {broken}" for broken in self.broken)
        return PluginError(f"{message}\nIt may belong to a plugin package that failed to load:\n{failed}")

    def load_config_class(self, kind: str, name: str) -> type[PluginConfig]:
        """Imports and returns the Config class of a registered plugin.

        Raises:
            PluginError: if the class cannot be imported or is no PluginConfig; see also `get`.
        """
        plugin = self.get(kind, name)
        return load_target(plugin.info, f"{plugin.label} (package {plugin.package} {plugin.version})")

    def warn_of_broken(self) -> None:
        """Logs each package that failed to load, the first time it is called; later calls are silent."""
        if not self._has_warned:
            self._has_warned = True
            for broken in self.broken:
                _logger.warning("a plugin package failed to load and is left out: %s", broken)

    def notify_engine_started(self, summary: Mapping[str, Any]) -> None:
        """Calls the hook `tokenloom_engine_started` of every package."""
        self._notify("tokenloom_engine_started", summary)

    def notify_engine_stopped(self, summary: Mapping[str, Any]) -> None:
        """Calls the hook `tokenloom_engine_stopped` of every package."""
        self._notify("tokenloom_engine_stopped", summary)

    def _notify(self, hook: str, summary: Mapping[str, Any]) -> None:
        for name, plugin in self._manager.list_name_plugin():
            others = [other for other in self._manager.get_plugins() if other is not plugin]
            try:
                self._manager.subset_hook_caller(hook, others)(summary=summary)
            except Exception:
                # An observer must not take the engine down with it, nor keep the other observers from hearing.
                _logger.exception("plugin module %s failed in %s", name, hook)


@cache
def default_registry() -> Registry:
    """The registry of the installed packages, read on first use and kept.

    Raises:
        PluginError: if two plugins have the same kind and name.
    """
    return Registry.discover()
