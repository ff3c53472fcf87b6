"""What each configuration key is: type, range, default, text. Shared by error messages and `tokenloom explain`."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from tokenloom.compose.keywords import KEYWORDS
from tokenloom.engine_config import EngineConfig
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.settings_validation import alternatives

__all__ = [
    "KeyDoc",
    "describe_field",
    "document_model",
    "holds_secrets",
    "is_choice",
    "near_keys",
    "settings_models",
    "takes_text",
]

_TYPE_NAMES = {bool: "true or false", int: "whole number", float: "number", str: "text", Path: "path", Any: "any value"}
_TYPE_NAMES |= {SecretStr: "text", dict: "mapping", Mapping: "mapping"}
_TYPE_NAMES |= dict.fromkeys((list, tuple, set, frozenset, Sequence), "list")


@dataclass(frozen=True, slots=True)
class KeyDoc:
    """One key, documented.

    Attributes:
        key: dotted key.
        type: words such as "whole number >= 1, or null".
        default: the default value; None also where `is_required`.
        is_required: whether it has no default.
        choices: legal values, if they are few and known.
        doc: one line of text.
    """

    key: str
    type: str
    default: Any
    is_required: bool
    choices: tuple[str, ...]
    doc: str


def settings_models(schema: type[BaseModel] = EngineConfig) -> dict[str, type[BaseModel]]:
    """The blocks of a schema by key; an EngineConfig has the core's own model, engine, debug, trace."""
    models: dict[str, type[BaseModel]] = {}
    for name, info in schema.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            models[name] = kind
    return models


def document_model(prefix: str, model: type[BaseModel]) -> list[KeyDoc]:
    """Documents the fields of a model and of its blocks, nested plugins left out."""
    stem, blocks, docs = f"{prefix}." if prefix else "", settings_models(model), list[KeyDoc]()
    for name, info in model.model_fields.items():
        if name in blocks:
            docs += document_model(stem + name, blocks[name])
        elif not is_choice(info):
            docs.append(describe_field(stem + name, info))
    return docs


def is_choice(info: FieldInfo) -> bool:
    """Whether a field holds a nested plugin."""
    return info.annotation is PluginChoice


def describe_field(key: str, info: FieldInfo) -> KeyDoc:
    """Documents one field."""
    required = info.is_required()
    return KeyDoc(
        key=key,
        type=_type_text(info.annotation, info.metadata),
        default=None if required else info.get_default(call_default_factory=True, validated_data={}),
        is_required=required,
        choices=_choices(info.annotation),
        doc=info.description or "",
    )


def holds_secrets(annotation: Any) -> bool:
    """Whether values of a type must never be shown."""
    return annotation is SecretStr or any(holds_secrets(part) for part in typing.get_args(annotation))


def takes_text(info: FieldInfo) -> bool:
    """Whether a field's value is text (str or Path), so that overrides take it literally."""
    return any(part in (str, Path) for part in alternatives(info.annotation))


def near_keys(key: str, known: Iterable[str]) -> list[str]:
    """Known keys that `key` may have meant: the same last word elsewhere, a Python keyword, or similar spelling."""
    known = sorted(set(known))
    last = key.rpartition(".")[2]
    near = [name for name in known if name.rpartition(".")[2] == last]
    if last in KEYWORDS:
        near.append(KEYWORDS[last])
    near += difflib.get_close_matches(key, known, n=3, cutoff=0.75)
    near += [name for name in known if difflib.SequenceMatcher(None, last, name.rpartition(".")[2]).ratio() >= 0.8]
    return list(dict.fromkeys(name for name in near if not f"{key}.".startswith(f"{name}.")))[:3]


def _choices(annotation: Any) -> tuple[str, ...]:
    literals = [part for part in alternatives(annotation) if typing.get_origin(part) is Literal]
    return tuple(str(value) for part in literals for value in typing.get_args(part))


def _type_text(annotation: Any, metadata: Sequence[Any]) -> str:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        inner, *extra = typing.get_args(annotation)
        unpacked = [part for item in extra for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
        return _type_text(inner, [*metadata, *unpacked])
    if origin in (Union, types.UnionType):
        return " or ".join(_type_text(member, metadata) for member in typing.get_args(annotation))
    if annotation is type(None):
        return "null"
    if origin is Literal:
        return "one of " + ", ".join(str(value) for value in typing.get_args(annotation))
    if origin in (dict, Mapping):
        of_keys, of_values = (_type_text(member, ()) for member in typing.get_args(annotation))
        return f"mapping from {of_keys} to {of_values}"
    if origin in (list, tuple, set, frozenset, Sequence):
        members = [member for member in typing.get_args(annotation) if member is not Ellipsis]
        return f"list of {' and '.join(dict.fromkeys(_type_text(member, ()) for member in members))}"
    name = _TYPE_NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))
    return " ".join([name, " and ".join(filter(None, map(_bound_text, metadata)))]).strip()


def _bound_text(item: Any) -> str:
    match item:
        case Gt(gt=bound):
            return f"> {bound}"
        case Ge(ge=bound):
            return f">= {bound}"
        case Lt(lt=bound):
            return f"< {bound}"
        case Le(le=bound):
            return f"<= {bound}"
        case _:
            return ""
