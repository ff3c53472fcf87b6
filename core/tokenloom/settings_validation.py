"""Settings of one Config from plain values, and what is wrong with them in the words of whoever wrote them."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar, Union

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tokenloom.errors import ConfigError, did_you_mean
from tokenloom.interfaces.contract import PluginChoice

__all__ = ["alternatives", "fault_text", "lists_to_tuples", "located_fault", "misreads_bool", "validated"]

_Config = TypeVar("_Config", bound=BaseModel)


def validated(config_class: type[_Config], values: Mapping[str, Any], label: str) -> _Config:
    """Builds a Config from plain data.

    Args:
        config_class: of the plugin, or of anything else with settings.
        values: setting -> value; lists where it wants tuples, `PluginChoice` for nested plugins.
        label: whose settings they are, e.g. "scheduler=fcfs"; the message starts with it.

    Raises:
        ConfigError: it names every fault with its value, and for an unknown setting the known ones.
    """
    faults = [
        f"{name}: must not be true or false, got {values[name]!r}"
        for name, info in config_class.model_fields.items()
        if isinstance(values.get(name), bool) and misreads_bool(info)
    ]
    try:
        config = config_class.model_validate(lists_to_tuples(config_class, values))
    except ValidationError as error:
        faults += [_fault(details, config_class, values) for details in error.errors(include_url=False)]
        raise ConfigError(f"{label}: {'; '.join(dict.fromkeys(faults))}") from error
    if faults:
        raise ConfigError(f"{label}: {'; '.join(faults)}")
    return config


def lists_to_tuples(config_class: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON and YAML know only lists, and a strict tuple field would refuse one; tuples inside of tuples as well."""
    fields = config_class.model_fields
    return {
        str(key): _to_tuple(fields[key].annotation, value) if key in fields else value for key, value in values.items()
    }


def misreads_bool(info: FieldInfo) -> bool:
    """Whether pydantic would take `true` for the 1 of a field such as Literal[1, 2], strict or not."""
    parts = alternatives(info.annotation)
    literals = [value for part in parts if typing.get_origin(part) is Literal for value in typing.get_args(part)]
    return any(type(value) is int for value in literals) and bool not in parts


def alternatives(annotation: Any) -> Sequence[Any]:
    """The members of a union without their Annotated wrappers; a plain type alone."""
    if typing.get_origin(annotation) is typing.Annotated:
        return alternatives(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (Union, types.UnionType):
        return [part for member in typing.get_args(annotation) for part in alternatives(member)]
    return [annotation]


def fault_text(details: ErrorDetails) -> str:
    """What one pydantic error says of a value, e.g. "must be a valid integer"."""
    text = details["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return text[:1].lower() + text[1:]


def located_fault(details: ErrorDetails, whole: str) -> str:
    """The same with the place before it, e.g. "0.prompt: must be a valid list"; `whole` stands for a place of none."""
    return f"{'.'.join(map(str, details['loc'])) or whole}: {fault_text(details)}"


def _fault(details: ErrorDetails, config_class: type[BaseModel], values: Mapping[str, Any]) -> str:
    """One pydantic error as a user reads it."""
    key = _key_of(details["loc"], values)
    if details["type"] == "extra_forbidden":
        known = list(config_class.model_fields) if len(details["loc"]) == 1 else []
        only = f", only {', '.join(known) or 'none'}." if len(details["loc"]) == 1 else ""
        return f"there is no setting {key!r}{only}{did_you_mean(key, known)}"
    if details["type"] == "missing":
        return f"the setting {key!r} must be given"
    if details["type"] == "is_instance_of" and details.get("ctx", {}).get("class") == PluginChoice.__name__:
        return f"{key}: must be a nested plugin, got {details['input']!r:.80}"
    return f"{key or 'the settings'}: {fault_text(details)}, got {details['input']!r:.80}"


def _key_of(location: tuple[int | str, ...], values: Any) -> str:
    """The dotted key; the tail of a location may name a member of a union, which is no key."""
    parts: list[str] = []
    for part in location:
        if not isinstance(values, Mapping if isinstance(part, str) else list | tuple):
            break
        parts.append(str(part))
        values = values.get(part) if isinstance(values, Mapping) else values[int(part)]
    return ".".join(parts)


def _to_tuple(annotation: Any, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    for member in alternatives(annotation):
        if typing.get_origin(member) is tuple:
            inner = [part for part in typing.get_args(member) if part is not Ellipsis]
            kinds = inner if len(inner) == len(value) else inner[:1] * len(value)
            return tuple(_to_tuple(kind, part) for kind, part in zip(kinds or [Any] * len(value), value, strict=True))
    return value
