"""Which settings of a plugin to try: those given, then one field at a time with other values that its Config takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from tokenloom.errors import ConfigError, PluginError
from tokenloom.interfaces.contract import PluginConfig, PluginInfo
from tokenloom.plugin_target import load_target
from tokenloom.testing.suite import build_choice

__all__ = ["varied_settings"]

_VALUES: Mapping[Any, Sequence[Any]] = {
    bool: (True, False),
    int: (2, 1, 3, 0),
    float: (1.0, 0.5, 2.0, 0.0, -1.0),
    NoneType: (None,),
}


def varied_settings(
    info: PluginInfo, given: Mapping[str, Any], others: Sequence[Mapping[str, Any]] = ()
) -> list[PluginConfig]:
    """Configs to try, the first with `given` and otherwise the defaults; each next one differs from it in one field.

    Other values follow from the type of a field: bool, int, float, None and Literal. Required fields that `given` lacks
    get such a value as well. What the Config refuses is left out.

    Args:
        info: the plugin.
        given: settings that differ from the defaults.
        others: settings to try beside those that follow from the types.

    Raises:
        PluginError: a required field is missing that no value can be made up for.
    """
    first = _completed(info, given)
    found = [build_choice(info, first).config]
    found += [build_choice(info, {**first, **changes}).config for changes in others]
    for name, field in load_target(info).model_fields.items():
        for value in _values(field.annotation):
            try:
                config = build_choice(info, {**first, name: value}).config
            except ConfigError:
                continue
            if config not in found:
                found.append(config)
    return found


def _completed(info: PluginInfo, given: Mapping[str, Any]) -> Mapping[str, Any]:
    fields = load_target(info).model_fields
    missing = {name: _values(field.annotation) for name, field in fields.items() if field.is_required()}
    # Nested plugins are at their defaults then.
    parts = {sub_kind.rpartition(".")[2] for sub_kind in info.sub_kinds}
    missing = {name: values for name, values in missing.items() if name not in given and name not in parts}
    for values in itertools.product(*missing.values()):
        settings = {**given, **dict(zip(missing, values, strict=True))}
        try:
            build_choice(info, settings)
        except ConfigError:
            if not missing:
                raise
        else:
            return settings
    raise PluginError(
        f"{info.kind}={info.name} needs the settings {', '.join(missing)}, and the kit knows no values for them; try "
        "the class attribute `settings` of its suite, or --settings of `tokenloom plugins check`"
    )


def _values(annotation: Any) -> Sequence[Any]:
    return tuple(_values_of(annotation))


def _values_of(annotation: Any) -> Iterator[Any]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif get_origin(annotation) is Annotated:
        yield from _values_of(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _values_of(part)
    elif isinstance(annotation, type):
        yield from _VALUES.get(annotation, ())
