"""Finds plugin packages through entry points and reads what they declare.

Walks importlib.metadata itself, one module at a time, so that one broken package never hides the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

import pluggy

from tokenloom import hookspecs
from tokenloom.errors import PluginError
from tokenloom.interfaces.contract import CONTRACT_VERSIONS, Capabilities, PluginInfo, is_compatible
from tokenloom.interfaces.model import ModelInfo

__all__ = [
    "BrokenPlugin",
    "ConfigFolder",
    "Found",
    "RegisteredModel",
    "RegisteredPlugin",
    "discover",
    "read_modules",
]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class RegisteredPlugin:
    """A declared plugin and the package that brings it. `refusal` says why this core cannot run it, if it cannot."""

    info: PluginInfo
    package: str
    version: str
    refusal: str | None = None

    @property
    def label(self) -> str:
        """How messages name it, e.g. "scheduler=fcfs"."""
        return f"{self.info.kind}={self.info.name}"


@dataclass(frozen=True, slots=True)
class RegisteredModel:
    """A declared model family and the package that brings it."""

    info: ModelInfo
    package: str
    version: str


@dataclass(frozen=True, slots=True)
class BrokenPlugin:
    """An entry point that could not be imported or that declares something invalid."""

    entry_point: str
    package: str
    error: str

    def __str__(self) -> str:
        return f"{self.package} (entry point '{self.entry_point}'): {self.error}"


@dataclass(frozen=True, slots=True)
class ConfigFolder:
    """A folder of Hydra groups and who brings it."""

    owner: str
    path: Path


@dataclass(frozen=True, slots=True)
class Found:
    """All that discovery has found. `manager` carries the event hooks of the modules that loaded."""

    plugins: tuple[RegisteredPlugin, ...]
    models: tuple[RegisteredModel, ...]
    broken: tuple[BrokenPlugin, ...]
    config_folders: tuple[ConfigFolder, ...]
    manager: pluggy.PluginManager


@dataclass(frozen=True, slots=True)
class _Declared:
    """What one module declares."""

    plugins: list[PluginInfo]
    models: list[ModelInfo]
    config_folders: list[Path]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A module to read: either still to be imported from an entry point, or given."""

    label: str
    package: str
    version: str
    source: EntryPoint | ModuleType


def discover(points: Iterable[EntryPoint] | None = None) -> Found:
    """Reads every installed entry point of group `tokenloom` (or the given ones), in a stable order.

    Raises:
        PluginError: if two plugins have the same kind and name.
    """
    found = entry_points(group=hookspecs.ENTRY_POINT_GROUP) if points is None else points
    candidates = [
        _Candidate(
            label=f"{point.name} = {point.value}",
            package=point.dist.name if point.dist is not None else point.module.partition(".")[0],
            version=point.dist.version if point.dist is not None else "?",
            source=point,
        )
        for point in found
    ]
    return _read(sorted(candidates, key=lambda c: (c.package, c.label)))


def read_modules(modules: Iterable[ModuleType]) -> Found:
    """Reads modules that are already imported, in the given order; meant for tests and embedding.

    Raises:
        PluginError: if two plugins have the same kind and name.
    """
    return _read([_Candidate(module.__name__, module.__name__.partition(".")[0], "?", module) for module in modules])


def _read(candidates: Iterable[_Candidate]) -> Found:
    manager = pluggy.PluginManager(hookspecs.ENTRY_POINT_GROUP)
    manager.add_hookspecs(hookspecs)
    plugins: dict[tuple[str, str], RegisteredPlugin] = {}
    models: list[RegisteredModel] = []
    broken: list[BrokenPlugin] = []
    folders: list[ConfigFolder] = []
    for candidate in candidates:
        try:
            declared = _declarations(manager, candidate)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a package may fail in any way; it is reported, not lost
            broken.append(BrokenPlugin(candidate.label, candidate.package, f"{type(error).__name__}: {error}"))
            continue
        folders.extend(ConfigFolder(candidate.package, path) for path in declared.config_folders)
        models.extend(RegisteredModel(info, candidate.package, candidate.version) for info in declared.models)
        for info in declared.plugins:
            plugin = RegisteredPlugin(info, candidate.package, candidate.version, _refusal(info))
            other = plugins.setdefault((info.kind, info.name), plugin)
            if other is not plugin:
                raise PluginError(
                    f"two plugins are called {plugin.label}: one from package {other.package}, one from package "
                    f"{plugin.package}; names are unique within a kind, so uninstall one of the packages or rename"
                )
    return Found(tuple(plugins.values()), tuple(models), tuple(broken), tuple(folders), manager)


def _declarations(manager: pluggy.PluginManager, candidate: _Candidate) -> _Declared:
    """Imports and registers one module and returns what it declares; on any failure the module is unregistered."""
    source = candidate.source
    module = source.load() if isinstance(source, EntryPoint) else source
    if manager.is_registered(module):
        raise PluginError(f"its module {module.__name__} is already registered by another entry point")
    try:
        manager.register(module, name=f"{candidate.package}:{candidate.label}")
        manager.check_pending()
        others = [plugin for plugin in manager.get_plugins() if plugin is not module]
        plugins = manager.subset_hook_caller("tokenloom_plugins", others)()
        models = manager.subset_hook_caller("tokenloom_models", others)()
        paths = [Path(path) for path in manager.subset_hook_caller("tokenloom_config_dir", others)()]
        declared = _Declared(
            [info for infos in plugins for info in infos], [info for infos in models for info in infos], paths
        )
        _check_declarations(declared)
    except BaseException:
        # Otherwise check_pending() would count every later module as broken, too.
        if manager.is_registered(module):
            manager.unregister(module)
        raise
    return declared


def _check_declarations(declared: _Declared) -> None:
    for path in declared.config_folders:
        if not path.is_dir():
            raise PluginError(f"tokenloom_config_dir() returned {str(path)!r}, which is not a folder")
    for model in declared.models:
        if not isinstance(model, ModelInfo):
            raise PluginError(f"tokenloom_models() returned a {type(model).__name__}, it must return ModelInfo objects")
        if not isinstance(model.target, str) or not _TARGET.fullmatch(model.target):
            raise PluginError(f"model {model.name}: target must be 'module:Class', got {model.target!r}")
        for words in (model.model_types, model.class_names, model.gguf_names):
            if not isinstance(words, tuple) or not all(isinstance(word, str) for word in words):
                raise PluginError(f"model {model.name}: names must be a tuple of texts, got {words!r}")
        if not _is_version(model.contract):
            raise PluginError(
                f"model {model.name}: contract must be two numbers such as (1, 0), got {model.contract!r}"
            )
    for info in declared.plugins:
        if not isinstance(info, PluginInfo):
            raise PluginError(
                f"tokenloom_plugins() returned a {type(info).__name__}, it must return PluginInfo objects"
            )
        _check_types(info)
        if not _NAME.fullmatch(info.name):
            raise PluginError(f"plugin name {info.name!r} must be lower case letters, digits and underscores")
        if not _TARGET.fullmatch(info.config):
            raise PluginError(f"{info.kind}={info.name}: config must be 'module:Class', got {info.config!r}")
        for sub_kind in info.sub_kinds:
            if sub_kind.rpartition(".")[0] != info.kind:
                raise PluginError(f"{info.kind}={info.name}: sub_kinds names {sub_kind!r}, which is not of its kind")


def _check_types(info: PluginInfo) -> None:
    """A PluginInfo is plain data of a foreign package: one of the wrong type must not break commands later."""
    version = info.contract
    texts = {"kind": info.kind, "name": info.name, "config": info.config, "summary": info.summary}
    problems = [f"{name} must be text, got {value!r}" for name, value in texts.items() if not isinstance(value, str)]
    if not _is_version(version):
        problems.append(f"contract must be two numbers such as (1, 0), got {version!r}")
    if not isinstance(info.capabilities, Capabilities):
        problems.append(f"capabilities must be a Capabilities object, got {type(info.capabilities).__name__}")
    if not isinstance(info.sub_kinds, Mapping):
        problems.append(f"sub_kinds must map sub-kinds to names, got {type(info.sub_kinds).__name__}")
    if problems:
        raise PluginError(f"PluginInfo {info.name!r}: {'; '.join(problems)}")


def _is_version(version: object) -> bool:
    return isinstance(version, tuple) and len(version) == 2 and all(type(part) is int for part in version)


def _refusal(info: PluginInfo) -> str | None:
    core = CONTRACT_VERSIONS.get(info.kind)
    if core is None:
        return f"kind '{info.kind}' is not known to this core; it knows {', '.join(CONTRACT_VERSIONS)}"
    if not is_compatible(info.contract, core):
        return (
            f"it was written for {info.kind} contract {_dotted(info.contract)}, this core speaks {_dotted(core)} "
            f"(the major must be equal, the minor not newer)"
        )
    return None


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(str(part) for part in version)
