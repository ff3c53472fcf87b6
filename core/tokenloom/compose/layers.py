"""Lays the chosen config files and the user's settings over one another, and remembers where each value came from.

Hydra decides which files, in which order (its defaults lists); later layers win. Settings come last.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from tokenloom.compose.conf_folders import ROOT_CONFIG, display_path
from tokenloom.compose.overrides import Setting, value_word
from tokenloom.compose.secret_words import may_hold_secret
from tokenloom.errors import ConfigError
from tokenloom.plugins import ConfigFolder

__all__ = ["ConfigFile", "Layers", "read_config_file", "stack"]

_READ_ERRORS = (OmegaConfBaseException, YAMLError, OSError, ValueError)
_DEFAULTS_KEY = re.compile(r"(?:(?:override|optional) )*(?P<path>/?[\w./-]+)(?:@.*)?")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One config file: its values, its defaults list as {absolute group: option}, and how messages name it."""

    path: str
    values: DictConfig
    defaults: Mapping[str, str | None]
    label: str


@final
@dataclass(slots=True)
class Layers:
    """The composed values while they are being stacked.

    Attributes:
        config: everything so far; interpolations unresolved.
        sources: origin of each leaf, by dotted key.
        choices: option of each group, by dotted key; None where nothing is chosen.
    """

    config: DictConfig = field(default_factory=lambda: OmegaConf.create({}))
    sources: dict[str, str] = field(default_factory=dict)
    choices: dict[str, str | None] = field(default_factory=dict)

    def copy(self) -> Layers:
        """The same values, to be changed apart from these."""
        return Layers(copy.deepcopy(self.config), dict(self.sources), dict(self.choices))

    def put(self, key: str, value: Any, origin: str) -> None:
        """Sets one value, whatever was there before; a mapping is merged into a block."""
        parts = key.split(".")
        for end in range(1, len(parts)):
            above = ".".join(parts[:end])
            held = OmegaConf.select(self.config, above)
            if held is not None and not isinstance(held, DictConfig):
                raise ConfigError(f"{origin}: {above} holds a value ({value_word(held)}), it has no key {parts[end]!r}")
        try:
            OmegaConf.update(self.config, key, value, merge=True, force_add=True)
        except OmegaConfBaseException as error:
            raise ConfigError(f"{origin}: {error}") from error
        self._note(key, value, origin)

    def merge(self, file: ConfigFile, package: str) -> None:
        """Lays a file's values over what is there."""
        layer = OmegaConf.create({})
        if package:
            OmegaConf.update(layer, package, file.values, merge=False)
        else:
            layer = file.values
        try:
            self.config.merge_with(layer)
        except OmegaConfBaseException as error:
            raise ConfigError(f"{file.label}: {error}") from error
        for key, value in OmegaConf.to_container(layer).items():  # type: ignore[union-attr]
            self._note(str(key), value, file.label)

    def resolved(self) -> dict[str, Any]:
        """The values as plain data, interpolations resolved.

        Raises:
            ConfigError: an interpolation cannot be resolved, or a mandatory value ('???') was not given.
        """
        try:
            values = OmegaConf.to_container(self.config, resolve=True, throw_on_missing=True)
        except OmegaConfBaseException as error:
            reason = "" if may_hold_secret(str(error.full_key)) else f": {str(error).splitlines()[0]}"
            raise ConfigError(f"{error.full_key}: its value cannot be resolved{reason}") from error
        assert isinstance(values, dict)
        return {str(key): value for key, value in values.items()}

    def _note(self, key: str, value: Any, origin: str) -> None:
        if isinstance(value, Mapping) and value:
            for name, part in value.items():
                self._note(f"{key}.{name}", part, origin)
            return
        for known in [known for known in self.sources if known.startswith(f"{key}.")]:
            del self.sources[known]
        self.sources[key] = origin


def read_config_file(loader: ConfigLoader, folders: Sequence[ConfigFolder], path: str) -> ConfigFile:
    """Reads one config file of the search path, e.g. "cache/hash".

    Raises:
        ConfigError: the file is not valid YAML, not a mapping, or tries to set Hydra's own settings.
    """
    source = next(source for source in loader.get_sources() if source.is_config(path))
    folder = next((folder for folder in folders if str(folder.path) == source.path), None)
    if folder is None:
        raise ConfigError(
            f"a Hydra plugin ({source.provider}) puts its own {path}.yaml in front: {source.path}; remove it"
        )
    label = display_path(folder, path)
    try:
        values = source.load_config(path).config
    except _READ_ERRORS as error:
        raise ConfigError(f"{label} cannot be read: {error}") from error
    if not isinstance(values, DictConfig):
        raise ConfigError(f"{label} must hold a mapping of keys to values, it holds a list")
    defaults = _defaults(values.pop("defaults", []), path)
    if "hydra" in values or any(group.startswith("hydra.") for group in defaults):
        raise ConfigError(f"{label}: Hydra's own settings (hydra: ...) have no effect here and are refused")
    return ConfigFile(path, values, defaults, label)


def _defaults(items: Any, path: str) -> dict[str, str | None]:
    """A defaults list as {absolute dotted group: option}; entries without a group are left to Hydra."""
    folder = path.rpartition("/")[0]
    result: dict[str, str | None] = {}
    for item in items:
        if not isinstance(item, DictConfig):
            continue
        for key, option in item.items():
            match = _DEFAULTS_KEY.fullmatch(str(key))
            if match is not None:
                group = match["path"].lstrip("/") if match["path"].startswith("/") else f"{folder}/{match['path']}"
                result[group.strip("/").replace("/", ".")] = None if option is None else str(option)
    return result


def stack(loader: ConfigLoader, folders: Sequence[ConfigFolder], chosen: Sequence[Setting]) -> Layers:
    """Stacks the files that the root config and the chosen options name.

    Args:
        chosen: settings that choose a group's option. One of a group that is not in any defaults list must have a key
            with a leading "+".

    Raises:
        ConfigError: an option does not exist, or a file cannot be read.
    """
    overrides = [
        f"{setting.key.replace('.', '/')}={QuotedString(text=setting.value, quote=Quote.single).with_quotes()}"
        for setting in chosen
    ]
    try:
        plan = loader.compute_defaults_list(ROOT_CONFIG, overrides, RunMode.RUN)
    except (HydraException, *_READ_ERRORS) as error:
        raise ConfigError(f"the config files do not fit together: {error}") from error
    layers = Layers()
    origins = {setting.key.lstrip("+"): setting.origin for setting in chosen}
    known = {str(group).replace("/", "."): option for group, option in plan.overrides.known_choices.items()}
    layers.choices = {group: option for group, option in known.items() if not group.startswith("hydra.")}
    for default in plan.defaults:
        if default.config_path is None or default.config_path.startswith("hydra/"):
            continue
        file = read_config_file(loader, folders, default.config_path)
        layers.merge(file, default.package or "")
        for group, option in file.defaults.items():
            if group not in {s.key.lstrip("+") for s in chosen} and layers.choices.get(group) == option:
                origins[group] = file.label
    for group, origin in origins.items():
        if f"{group}.name" in layers.sources:
            layers.sources[f"{group}.name"] = origin
    return layers
