"""Typed reading of a checkpoint's key-value data (GGUF metadata, config.json); errors name file and key."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeGuard, final

from tokenloom.errors import ModelError, did_you_mean

__all__ = ["MAX_LAYERS", "Fields"]

MAX_LAYERS = 4096
"""No model comes near; a damaged count beyond it is refused before anything is sized by it."""

_MAX_INTEGER = 2**31 - 1


@final
class Fields:
    """Values of one mapping by key. A null value counts as absent, as config.json files mean it.

    A getter without `default` requires the key; with one, an absent key gives the default. A value of another type
    is always a ModelError, never converted.
    """

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self.path = path
        self._values = values

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def is_null(self, key: str) -> bool:
        """Whether the key is there and its value is null, where that is not the same as leaving it out."""
        return key in self._values and self._values[key] is None

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key whose value is not null, in file order."""
        return tuple(key for key, value in self._values.items() if value is not None)

    def raw(self, key: str) -> Any:
        """The value as it stands in the file; None where the key is absent."""
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = _MAX_INTEGER) -> int:
        value = self._get(key, default)
        if not _is_integer(value) or not minimum <= value <= maximum:
            self._refuse(key, f"an integer from {minimum} to {maximum}", value)
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if not _is_number(value):
            self._refuse(key, "a finite number", value)
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            self._refuse(key, "a string", value)
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            self._refuse(key, "true or false", value)
        return value

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers; empty where the key is absent."""
        values = self._list(key, "a list of finite numbers", _is_number)
        return tuple(float(value) for value in values)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty where the key is absent."""
        return tuple(self._list(key, "a list of strings", _is_text))

    def group(self, key: str) -> Fields | None:
        """A nested mapping, or None where the key is absent."""
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self._refuse(key, "an object", value)
        return Fields(value, self.path)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them; empty where the key is absent. Negative ids mean "none" and are left out."""
        value = self._values.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(_is_integer(token_id) for token_id in ids):
            self._refuse(key, "a token id or a list of token ids", value)
        return tuple(token_id for token_id in ids if token_id >= 0)

    def uniform_integer(self, key: str, default: int | None = None) -> int:
        """An integer that may also be written once per layer, as long as every layer has the same."""
        value = self._get(key, default)
        if isinstance(value, list):
            if not value or not all(_is_integer(item) for item in value):
                self._refuse(key, "an integer, or one for each layer", value)
            if len(set(value)) != 1:
                raise ModelError(
                    f"{self.path}: {key!r} differs between layers ({value[:8]}...), which is not supported"
                )
            value = value[0]
        return Fields({key: value}, self.path).integer(key)

    def _list(self, key: str, expected: str, is_right: Callable[[Any], bool]) -> list[Any]:
        values = self._values.get(key)
        if values is None:
            return []
        if not isinstance(values, list) or not all(map(is_right, values)):
            self._refuse(key, expected, values)
        return list(values)

    def _get(self, key: str, default: Any) -> Any:
        value = self._values.get(key)
        if value is not None:
            return value
        if default is None:
            raise ModelError(f"{self.path} lacks the key {key!r}.{did_you_mean(key, self._values)}")
        return default

    def _refuse(self, key: str, expected: str, value: Any) -> NoReturn:
        raise ModelError(f"{self.path}: {key!r} must be {expected}, got {repr(value)[:80]}")


def _is_integer(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """Whether it is one that a float holds: JSON has integers beyond that, and spells infinities."""
    if isinstance(value, float):
        return math.isfinite(value)
    return _is_integer(value) and abs(value) <= sys.float_info.max


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
