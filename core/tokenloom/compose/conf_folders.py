"""The folders that Hydra groups come from: the built-in one, those of plugin packages, and the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenloom
from tokenloom.errors import ConfigError, PluginError
from tokenloom.plugins import ConfigFolder, Registry

__all__ = ["ROOT_CONFIG", "builtin_conf_dir", "conf_folders", "display_path", "group_options"]

ROOT_CONFIG = "config"
"""Name of the file (without .yaml) at which every composition starts."""

BUILTIN = "tokenloom"
USER = "--config-dir"


def builtin_conf_dir() -> Path:
    """Returns `tokenloom/conf` of an installed wheel, or `conf/` beside the sources of a checkout.

    Raises:
        ConfigError: if neither holds the root config.
    """
    assert tokenloom.__file__ is not None
    package = Path(tokenloom.__file__).resolve().parent
    candidates = (package / "conf", package.parent.parent / "conf")
    for folder in candidates:
        if (folder / f"{ROOT_CONFIG}.yaml").is_file():
            return folder
    looked = " or ".join(str(folder) for folder in candidates)
    raise ConfigError(f"the built-in configuration is missing: no {ROOT_CONFIG}.yaml in {looked}; reinstall tokenloom")


def conf_folders(registry: Registry, config_dir: Path | None) -> tuple[ConfigFolder, ...]:
    """Lists all folders of Hydra groups, in search order, each once.

    Raises:
        ConfigError: `config_dir` is not a folder, or holds an option that exists elsewhere.
        PluginError: two packages hold an option of the same group and name.
    """
    folders = [ConfigFolder(BUILTIN, builtin_conf_dir()), *registry.config_folders]
    if config_dir is not None:
        config_dir = config_dir.expanduser()  # no shell does that behind `--config-dir=`
        if not config_dir.is_dir():
            raise ConfigError(f"--config-dir={config_dir}: no such folder; it holds groups such as scheduler/mine.yaml")
        folders.append(ConfigFolder(USER, config_dir))
    unique = {folder.path.resolve(): folder.owner for folder in reversed(folders)}
    result = tuple(ConfigFolder(owner, path) for path, owner in reversed(unique.items()))
    _refuse_equal_options(result)
    return result


def group_options(folders: Sequence[ConfigFolder]) -> dict[str, list[str]]:
    """Sorted option names of every group, by dotted group key; a group is a folder with a YAML file in it."""
    options: dict[str, set[str]] = {}
    for folder in folders:
        for path in _config_files(folder):
            if len(path.parts) > 1:
                options.setdefault(".".join(path.parts[:-1]), set()).add(path.stem)
    return {group: sorted(names) for group, names in sorted(options.items())}


def display_path(folder: ConfigFolder, config_path: str) -> str:
    """How messages name a config file: "conf/cache/hash.yaml", "my_package:cache/x.yaml", or the user's own path."""
    if folder.owner == BUILTIN:
        return f"conf/{config_path}.yaml"
    if folder.owner == USER:
        return str(folder.path / f"{config_path}.yaml")
    return f"{folder.owner}:{config_path}.yaml"


def _config_files(folder: ConfigFolder) -> list[Path]:
    return sorted(path.relative_to(folder.path) for path in folder.path.rglob("*.yaml"))


def _refuse_equal_options(folders: Sequence[ConfigFolder]) -> None:
    """Hydra would take the first of two equal options and drop the other one without a word."""
    first: dict[Path, ConfigFolder] = {}
    for folder in folders:
        for option in _config_files(folder):
            other = first.setdefault(option, folder)
            if other is folder:
                continue
            error = ConfigError if folder.owner == USER else PluginError
            raise error(
                f"config option {option.as_posix()} exists twice: in {other.path} ({other.owner}) and in "
                f"{folder.path} ({folder.owner}); rename one of them"
            )
