"""Expands `key=a,b` into one list of overrides for each combination, for commands that compare configurations."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException

from tokenloom.compose.secret_words import shown_override
from tokenloom.errors import ConfigError

__all__ = ["SweepPoint", "expand_sweep"]


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One combination.

    Attributes:
        overrides: what to compose; no sweep is left in it.
        changes: those of `overrides` that came from a sweep, in order; they name the point.
    """

    overrides: tuple[str, ...]
    changes: tuple[str, ...]


def expand_sweep(overrides: Sequence[str], text_keys: Collection[str] = ()) -> list[SweepPoint]:
    """Builds the product of all sweeps, the last one varying fastest; one point without changes if there is none.

    Hydra's grammar decides what a sweep is: `a,b`, `range(1,5)`, `choice(a,b)`; `[a,b]` and quoted text are not.

    Args:
        overrides: as the user wrote them; of two of one key the last wins. What cannot be parsed is left as it is, for
            the composer to refuse.
        text_keys: keys whose value is text and never a sweep, such as file names.

    Raises:
        ConfigError: a sweep names a value twice, or none.
    """
    axes = _last_of_each(overrides, [_values(override, text_keys) for override in overrides])
    is_swept = [len(axis) > 1 for axis in axes]
    return [SweepPoint(point, tuple(itertools.compress(point, is_swept))) for point in itertools.product(*axes)]


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def _last_of_each(overrides: Sequence[str], axes: Sequence[list[str]]) -> list[list[str]]:
    """The axes without sweeps that a later override makes void: they would run the same for each of their values."""
    keys = [_key(override).lstrip("+").replace("/", ".") for override in overrides]
    last = {key: index for index, key in enumerate(keys)}
    return [axis for index, axis in enumerate(axes) if len(axis) == 1 or last[keys[index]] == index]


def _values(override: str, text_keys: Collection[str]) -> list[str]:
    key = _key(override)
    if key in text_keys or key.lstrip("+") in ("model", "model.source", "model.revision"):
        return [override]
    try:
        parsed: Override = OverridesParser.create().parse_override(override)
    except HydraException:
        return [override]
    if not parsed.is_sweep_override():
        return [override]
    values = list(parsed.sweep_string_iterator())
    if not values:
        raise ConfigError(f"override {shown_override(override)}: this sweep has no values; name one at least")
    meanings = [_comparable(value) for value in parsed.sweep_iterator()]
    for index, meaning in enumerate(meanings):
        if meaning in meanings[:index]:
            twin = shown_override(f"{key}={values[index]}")
            raise ConfigError(f"{twin} is given twice; name each value of a sweep once")
    return [f"{key}={value}" for value in values]


def _comparable(value: object) -> object:
    """What a value means: quotes make no difference, and true is not 1."""
    if isinstance(value, QuotedString):
        return value.text
    return (value,) if isinstance(value, bool) else value
