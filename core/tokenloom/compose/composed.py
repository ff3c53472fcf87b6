"""Composes Hydra groups, overrides and keywords into one validated EngineConfig."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.config_loader import ConfigLoader
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from tokenloom.compose.conf_folders import ROOT_CONFIG, conf_folders, group_options
from tokenloom.compose.config_keys import settings_models, takes_text
from tokenloom.compose.hydra_session import hydra_loader
from tokenloom.compose.kept_layers import kept_or_stacked
from tokenloom.compose.layers import Layers, read_config_file, stack
from tokenloom.compose.overrides import Grammar, Setting, collect_settings
from tokenloom.compose.validation import validate
from tokenloom.engine_config import EngineConfig
from tokenloom.errors import ConfigError, PluginError, did_you_mean
from tokenloom.interfaces.contract import CONTRACT_VERSIONS, KINDS, SUB_KINDS, PluginChoice
from tokenloom.plugins import ConfigFolder, Registry, default_registry

__all__ = ["ComposedConfig", "compose_config"]

Command = TypeVar("Command", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ComposedConfig:
    """A validated configuration and where it came from.

    Attributes:
        engine: the engine's settings and chosen plugins.
        extras: the command's own settings, validated by its schema; None without one. See `extras_of`.
        sources: origin of every leaf key: a config file, "override ...", "keyword ..." or "default".
        choices: the option chosen in each group, by dotted group key, e.g. {"experiment": "latency", ...}.
    """

    engine: EngineConfig
    extras: BaseModel | None
    sources: Mapping[str, str]
    choices: Mapping[str, str | None]

    def extras_of(self, schema: type[Command]) -> Command:
        """The command's settings as the type that was passed as `command`."""
        assert isinstance(self.extras, schema), f"composed with {type(self.extras).__name__}, not {schema.__name__}"
        return self.extras

    def to_dict(self) -> dict[str, Any]:
        """All values as plain data (JSON types); a plugin's block starts with its name."""
        return _values(self.engine, self.extras)


def compose_config(
    overrides: Sequence[str] = (),
    *,
    config_dir: Path | None = None,
    keywords: Mapping[str, Any] | None = None,
    command: type[BaseModel] | None = None,
    registry: Registry | None = None,
) -> ComposedConfig:
    """Composes and validates a configuration. Loads no weights and touches no device.

    Works inside a program that uses Hydra itself, and from several threads.

    Args:
        overrides: strings such as "scheduler=fcfs", "experiment=latency"; of two of one key the last wins.
        config_dir: folder of further groups, e.g. with `scheduler/mine.yaml` or `experiment/mine.yaml` in it.
        keywords: Python keywords of `KEYWORDS`, such as {"max_num_seqs": 8}.
        command: pydantic schema of the calling command's own keys, which stand at the top level beside the engine's
            ("workload=FILE"), or in a block that is a model of its own ("server.port=80"). Text fields (str, Path) are
            taken literally, so that paths need no quotes.
        registry: the plugins to choose from; the installed ones by default.

    Raises:
        ConfigError: a key or value is unknown, of the wrong type, out of range, or contradicts another one.
        PluginError: a chosen plugin is not there, and a package that failed to load may hold it.
        ContractVersionError: a chosen plugin was written for another contract version.
    """
    plugins = default_registry() if registry is None else registry
    plugins.warn_of_broken()
    folders = conf_folders(plugins, config_dir)
    options = group_options(folders)
    own_blocks = settings_models(command) if command is not None else {}
    grammar = Grammar(options, blocks={*settings_models(), *own_blocks, *KINDS}, text_keys=_text_keys(command))
    settings = collect_settings(overrides, keywords or {}, grammar)
    chosen = [setting for setting in settings if setting.key in options and setting.value is not None]
    with hydra_loader(folders) as loader:
        layers = _stack_choices(loader, folders, chosen, options, plugins)
    for setting in settings:
        if setting.key not in options:
            layers.put(setting.key, setting.value, setting.origin)
    validated = validate(layers.resolved(), layers.sources, plugins, command)
    leaves = _leaf_keys(_values(validated.engine, validated.extras))
    sources = {key: layers.sources.get(key, "default") for key in leaves}
    return ComposedConfig(validated.engine, validated.extras, sources, layers.choices)


def _stack_choices(
    loader: ConfigLoader,
    folders: Sequence[ConfigFolder],
    chosen: Sequence[Setting],
    options: Mapping[str, Sequence[str]],
    registry: Registry,
) -> Layers:
    groups = {*read_config_file(loader, folders, ROOT_CONFIG).defaults, *SUB_KINDS}
    for setting in chosen:
        if setting.key not in groups:
            raise ConfigError(
                f"{setting.origin}: an engine has no group {setting.key}, only {', '.join(sorted(groups))}"
            )
        _check_exists(setting, options[setting.key], registry)
    try:
        return kept_or_stacked(loader, folders, chosen)
    except ConfigError:
        # A part that no defaults list names stops Hydra: either the chosen plugin lacks it, or its file leaves it out.
        if all(setting.key not in SUB_KINDS for setting in chosen):
            raise
    whole = [setting for setting in chosen if setting.key not in SUB_KINDS]
    layers = stack(loader, folders, whole)
    parts = [
        setting if setting.key in layers.choices else replace(setting, key=f"+{setting.key}")
        for setting in chosen
        if setting.key in SUB_KINDS and _check_has_part(setting, layers, registry)
    ]
    return stack(loader, folders, [*whole, *parts])


def _check_exists(setting: Setting, options: Sequence[str], registry: Registry) -> None:
    group, name = setting.key, setting.value
    if name in options:
        return
    if group not in CONTRACT_VERSIONS:
        near = did_you_mean(name, options)
        raise ConfigError(f"{group}={name}: no such {group}; choose one of {', '.join(options)}.{near}")
    if name not in {plugin.info.name for plugin in registry.plugins(group)}:
        raise registry.unknown(group, name, {*options, *registry.names(group)})
    plugin = registry.get(group, name)
    raise PluginError(
        f"{plugin.label}: package {plugin.package} brings the plugin but no file {group.replace('.', '/')}/{name}.yaml "
        f"in the folder that its tokenloom_config_dir() names"
    )


def _check_has_part(setting: Setting, layers: Layers, registry: Registry) -> bool:
    """Whether the chosen parent has this part; refuses if not."""
    kind, _, part = setting.key.rpartition(".")
    name = str(layers.config[kind].get("name"))
    if setting.key in registry.get(kind, name).info.sub_kinds:
        return True
    able = [plugin.label for plugin in registry.plugins(kind) if setting.key in plugin.info.sub_kinds]
    raise ConfigError(f"{setting.origin}: {kind}={name} has no part '{part}'; try {' or '.join(able) or 'without it'}")


def _text_keys(command: type[BaseModel] | None, prefix: str = "") -> set[str]:
    if command is None:
        return set()
    keys = {prefix + name for name, info in command.model_fields.items() if takes_text(info)}
    return keys.union(*(_text_keys(block, f"{prefix}{name}.") for name, block in settings_models(command).items()))


def _values(engine: EngineConfig, extras: BaseModel | None) -> dict[str, Any]:
    values = {name: _plain(value) for name, value in engine}
    return {**values, **({} if extras is None else _plain(extras))}


def _plain(value: Any) -> Any:
    if isinstance(value, PluginChoice):
        return {"name": value.name, **_plain(value.config)}
    if isinstance(value, BaseModel):
        return {name: _plain(part) for name, part in value}
    return to_jsonable_python(value)


def _leaf_keys(values: Mapping[str, Any], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, value in values.items():
        is_block = isinstance(value, Mapping) and value
        keys += _leaf_keys(value, f"{prefix}{name}.") if is_block else [f"{prefix}{name}"]
    return keys
