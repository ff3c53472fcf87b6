"""From the "module:Class" of a declaration to the class, with errors that name who declared it."""

from __future__ import annotations

from importlib import import_module
from typing import TypeVar

from tokenloom.errors import PluginError
from tokenloom.interfaces.contract import PluginConfig, PluginInfo

__all__ = ["import_class", "load_target"]

_Base = TypeVar("_Base")


def load_target(info: PluginInfo, label: str = "") -> type[PluginConfig]:
    """Imports the Config class of a plugin.

    Args:
        info: the declaration.
        label: how errors name the plugin; "kind=name" by default.

    Raises:
        PluginError: the module fails to import, or does not hold such a class.
    """
    where = label or f"{info.kind}={info.name}"
    return import_class(info.config, PluginConfig, where)  # type: ignore[type-abstract]


def import_class(target: str, base: type[_Base], label: str) -> type[_Base]:
    """Imports a class written as "module:Class", which must derive from `base`. Errors as in `load_target`."""
    module_name, _, class_name = target.partition(":")
    try:
        found: object = vars(import_module(module_name)).get(class_name)
    except Exception as error:
        raise PluginError(f"{label} cannot be loaded: {type(error).__name__}: {error}") from error
    if found is None:
        raise PluginError(f"{label} cannot be loaded: module {module_name} has no class {class_name}")
    if not isinstance(found, type) or not issubclass(found, base):
        raise PluginError(f"{label} cannot be loaded: {target} is not a subclass of {base.__name__}")
    return found
