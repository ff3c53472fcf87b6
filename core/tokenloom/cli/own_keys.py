"""Keys of a command that composes no engine: read as everywhere, and nothing but its own ones is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from pydantic import BaseModel

from tokenloom.compose.config_keys import takes_text
from tokenloom.compose.parse_fault import parse_fault
from tokenloom.errors import ConfigError, did_you_mean
from tokenloom.settings_validation import validated

__all__ = ["read_own_keys", "text_keys"]

_Settings = TypeVar("_Settings", bound=BaseModel)


def text_keys(schema: type[BaseModel]) -> tuple[str, ...]:
    """Keys whose value is text, taken as it is written."""
    return tuple(name for name, info in schema.model_fields.items() if takes_text(info))


def read_own_keys(overrides: Sequence[str], schema: type[_Settings], command: str) -> _Settings:
    """Settings from words of the form key=value; of two of one key the last wins.

    Raises:
        ConfigError: a word is no override, or a key or its value is not legal.
    """
    values: dict[str, object] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        key, text = key.strip().lstrip("+"), text.strip()
        if not equals or not key:
            raise ConfigError(f"{override!r} is not an override; write key=value")
        if key not in schema.model_fields:
            near = did_you_mean(key, schema.model_fields)
            raise ConfigError(
                f"override {override}: {command} has no key {key}.{near} It runs no engine; its keys: "
                f"{', '.join(schema.model_fields)}"
            )
        values[key] = _text(text) if key in text_keys(schema) else _parsed(override)
    return validated(schema, values, command)


def _text(text: str) -> str | None:
    if text == "null":
        return None
    is_quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if is_quoted else text


def _parsed(override: str) -> object:
    try:
        parsed: Override = OverridesParser.create().parse_override(override)
    except HydraException as error:
        raise ConfigError(f"override {override}: cannot be parsed, {parse_fault(override, str(error))}") from error
    if parsed.is_sweep_override():
        raise ConfigError(f"override {override}: this command takes one value of each key")
    value: object = parsed.value()
    return value
