"""Which installed plugins a name stands for, and what the suites of their kinds say about each.

Imports neither pytest nor a suite until something is run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import yaml
from pydantic import ValidationError

from tokenloom.errors import ConfigError, PluginError, did_you_mean
from tokenloom.interfaces.contract import CONTRACT_VERSIONS, PluginInfo
from tokenloom.plugins import RegisteredPlugin, Registry
from tokenloom.testing.suite import PluginSuite, build_choice

__all__ = ["SUITES", "Checked", "Failure", "Progress", "check_plugins", "parse_settings", "select_plugins"]

SUITES: Mapping[str, str] = {
    "attention": "AttentionSuite",
    "scheduler": "SchedulerSuite",
    "scheduler.victim": "VictimSuite",
    "cache": "CacheSuite",
    "cache.eviction": "EvictionSuite",
    "spec_decode": "SpecDecodeSuite",
    "spec_decode.policy": "DraftPolicySuite",
    "quant": "QuantSuite",
    "logits_processor": "LogitsProcessorSuite",
}
"""The suite of each kind, as exported by `tokenloom.testing`. A kind that is not listed has none."""

Progress = Callable[[str, int, int], None]
"""(plugin, tests done, tests in all)."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A test that failed: its name with parameters, what its docstring says, and the message."""

    test: str
    meaning: str
    message: str


@dataclass(frozen=True, slots=True)
class Checked:
    """What the suite of its kind says about one plugin.

    Attributes:
        plugin: which.
        num_passed: tests that passed.
        skipped: reason -> number of tests skipped for it.
        failures: tests that failed.
        note: why nothing was run, if so.
    """

    plugin: RegisteredPlugin
    num_passed: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
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

    Raises:
        ConfigError: a word is no key=value, or the Config refuses the values.
    """
    settings: dict[str, Any] = {}
    for word in words:
        key, separator, text = word.partition("=")
        if not separator or not key:
            raise ConfigError(f"settings are written as key=value, got {word!r}")
        sub_kind = f"{plugin.info.kind}.{key}"
        if sub_kind in plugin.info.sub_kinds:
            settings[key] = build_choice(registry.get(sub_kind, text).info, {})
        else:
            settings[key] = yaml.safe_load(text)
    try:
        build_choice(plugin.info, settings)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"{plugin.label} refuses these settings: {problems}") from error
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
        suite = _suite_of(plugin.info)
        if plugin.refusal is not None:
            failure = Failure("contract version", "The plugin was written for another contract.", plugin.refusal)
            checked.append(Checked(plugin, failures=(failure,)))
        elif suite is None:
            checked.append(Checked(plugin, note=f"no suite for kind {plugin.info.kind}"))
        else:
            attributes = {"plugin": plugin.info, "settings": settings}
            outcome = run_suite(type("TestPlugin", (suite,), attributes), plugin.label, progress)
            checked.append(Checked(plugin, outcome.num_passed, outcome.skipped, outcome.failures))
    return checked


def _suite_of(info: PluginInfo) -> type[PluginSuite] | None:
    import tokenloom.testing

    name = SUITES.get(info.kind)
    if name is None or name not in tokenloom.testing.__all__:
        return None
    suite: type[PluginSuite] = getattr(tokenloom.testing, name)
    return suite


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
