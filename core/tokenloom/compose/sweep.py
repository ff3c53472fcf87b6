"""Expands `key=a,b` into one list of overrides for each combination, for commands that compare configurations."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

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
        overrides: as the user wrote them. What cannot be parsed is left as it is, for the composer to refuse.
        text_keys: keys whose value is text and never a sweep, such as file names.
    """
    axes = [_values(override, text_keys) for override in overrides]
    is_swept = [len(axis) > 1 for axis in axes]
    return [SweepPoint(point, tuple(itertools.compress(point, is_swept))) for point in itertools.product(*axes)]


def _values(override: str, text_keys: Collection[str]) -> list[str]:
    key = override.partition("=")[0].strip()
    if key in text_keys or key.lstrip("+") in ("model", "model.source", "model.revision"):
        return [override]
    try:
        parsed: Override = OverridesParser.create().parse_override(override)
    except HydraException:
        return [override]
    if not parsed.is_sweep_override():
        return [override]
    return [f"{key}={value}" for value in parsed.sweep_string_iterator()]
