"""Which installed plugins a name stands for, and what the suites of their kinds say about each.

Imports neither pytest nor a suite until something is run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from tokenloom.errors import ConfigError, PluginError, TokenloomError, did_you_mean
from tokenloom.interfaces.contract import CONTRACT_VERSIONS, PluginInfo
from tokenloom.plugin_target import import_class
from tokenloom.plugins import RegisteredPlugin, Registry
from tokenloom.testing import SUITES
from tokenloom.testing.outcome import Failure, Progress, SuiteOutcome
from tokenloom.testing.suite import PluginSuite, build_choice

__all__ = ["Checked", "check_plugins", "parse_settings", "select_plugins"]


@dataclass(frozen=True, slots=True)
class Checked:
    """What the suite of its kind says about one plugin.

    Attributes:
        plugin: which.
        outcome: of its tests.
        note: why nothing was run, if so.
    """

    plugin: RegisteredPlugin
    outcome: SuiteOutcome = field(default_factory=SuiteOutcome)
    note: str = ""


def select_plugins(registry: Registry, target: str) -> list[RegisteredPlugin]:
    """The plugins that `target` names: a distribution, an import package, or one plugin as "kind=name".

    Raises:
        ConfigError: nothing of that name is installed; near matches are named.
        PluginError: the package failed to load.
    """
    kind, separator, name = target.partition("=")
    if separator:
        if kind not in CONTRACT_VERSIONS:
            near = did_you_mean(kind, CONTRACT_VERSIONS)
            raise ConfigError(f"{target}: no such kind {kind!r}; choose one of {', '.join(CONTRACT_VERSIONS)}.{near}")
        return [registry.get(kind, name)]
    found = [plugin for plugin in registry.plugins() if _normal(target) in _names(plugin)]
    wanted = _normal(target)
    broken = [entry for entry in registry.broken if wanted in (_normal(entry.package), _module(entry.entry_point))]
    if broken:
        raise PluginError(f"package {target} failed to load: " + "; ".join(str(entry) for entry in broken))
    if not found:
        packages = sorted({plugin.package for plugin in registry.plugins()})
        labels = [plugin.label for plugin in registry.plugins()]
        modules = {plugin.info.config.partition(".")[0] for plugin in registry.plugins()}
        near = _labels_of(registry, target) or did_you_mean(target, {*packages, *labels, *modules})
        raise ConfigError(
            f"no installed package or plugin is called {target!r}; packages with plugins are {', '.join(packages)}, "
            f"one plugin is written as kind=name, e.g. {labels[0] if labels else 'scheduler=fcfs'}.{near}"
        )
    return found


def parse_settings(plugin: RegisteredPlugin, words: Sequence[str], registry: Registry) -> dict[str, Any]:
    """Settings of a plugin's Config from words such as "max_chunk_tokens=64"; nested plugins are given by name.

    A value reads as it does in an override of a config.

    Raises:
        ConfigError: a word is no key=value, its value cannot be parsed, or the Config refuses it.
    """
    # Imported here: Hydra's grammar takes a while to load, and listing plugins does without it.
    from tokenloom.compose.overrides import Grammar, collect_settings

    # A plugin's settings alone: no groups to choose from, and no text that is taken literally.
    grammar = Grammar(options={}, blocks=(), text_keys=())
    settings: dict[str, Any] = {}
    for word in words:
        key, separator, _ = word.partition("=")
        if not separator or not key.strip():
            raise ConfigError(f"settings are written as key=value, got {word!r}")
        (setting,) = collect_settings([f"{plugin.info.kind}.{word}"], {}, grammar)
        sub_kind, value = setting.key, setting.value
        if sub_kind in plugin.info.sub_kinds and isinstance(value, str):
            value = build_choice(registry.get(sub_kind, value).info, {})
        settings[sub_kind.removeprefix(f"{plugin.info.kind}.")] = value
    build_choice(plugin.info, settings)
    return settings


def check_plugins(
    plugins: Sequence[RegisteredPlugin],
    settings: Mapping[str, Any],
    progress: Progress = lambda _plugin, _done, _total: None,
) -> list[Checked]:
    """Runs the suite of each plugin's kind.

    Args:
        plugins: what to check.
        settings: values of their Configs that differ from the defaults.
        progress: told after every test.

    Raises:
        ConfigError: pytest or hypothesis is not installed.
    """
    missing = [name for name in ("pytest", "hypothesis") if find_spec(name) is None]
    if missing:
        raise ConfigError(f"checking plugins needs {' and '.join(missing)}; try pip install 'tokenloom[testing]'")
    from tokenloom.testing.suite_run import run_suite

    checked: list[Checked] = []
    for plugin in plugins:
        suite, fault = _suite_of(plugin.info), _fault(plugin, settings)
        if fault is not None:
            checked.append(Checked(plugin, SuiteOutcome(failures=(fault,))))
        elif suite is None:
            checked.append(Checked(plugin, note=f"no suite for kind {plugin.info.kind}"))
        else:
            attributes = {"plugin": plugin.info, "settings": settings}
            test_class = type("TestPlugin", (suite,), attributes)
            checked.append(Checked(plugin, run_suite(test_class, plugin.label, progress)))
    return checked


def _fault(plugin: RegisteredPlugin, settings: Mapping[str, Any]) -> Failure | None:
    """Why there is nothing to test: every test would say the same."""
    if plugin.refusal is not None:
        return Failure("contract version", "The plugin was written for another contract.", plugin.refusal)
    try:
        build_choice(plugin.info, settings)
    except TokenloomError as error:
        return Failure("configuration", "The plugin's Config cannot be made, so that nothing was tested.", str(error))
    return None


def _suite_of(info: PluginInfo) -> type[PluginSuite] | None:
    target = SUITES.get(info.kind)
    return None if target is None else import_class(target, PluginSuite, f"the suite of {info.kind}")


def _names(plugin: RegisteredPlugin) -> set[str]:
    """A plugin belongs to its distribution, and to the import package that holds its Config."""
    return {_normal(plugin.package), _normal(plugin.info.config.partition(":")[0].partition(".")[0])}


def _module(entry_point: str) -> str:
    """Top-level module of an entry point written as "name = module"."""
    return _normal(entry_point.rpartition(" = ")[2].partition(".")[0])


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _labels_of(registry: Registry, name: str) -> str:
    labels = [plugin.label for plugin in registry.plugins() if plugin.info.name == name]
    return f" Did you mean {' or '.join(labels)}?" if labels else ""
