"""Rotary embeddings in config.json: reads old and new spellings, writes the old one, which every reader knows.

Newer files hold everything in `rope_parameters`; older ones have `rope_theta` beside an optional `rope_scaling`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError
from tokenloom.rope_config import (
    DivisorScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
)

__all__ = ["RopeScope", "parse_rope", "read_rope", "rope_json"]

_NEUTRAL_KEYS = frozenset(
    {"finetuned", "original_max_position_embeddings", "partial_rotary_factor", "rope_theta", "rope_type", "type"}
)
_SECTIONS = ("rope_scaling", "rope_parameters")


@dataclass(frozen=True, slots=True)
class RopeScope:
    """What an entry of config.json is read against.

    Attributes:
        head_dim: size of a head.
        max_positions: the model's longest sequence.
        theta: the base where neither the entry nor the file states one.
        share: the part of a head that is rotated, where the entry does not say.
        original_positions: the trained length, where the file states one outside the entry; that one counts.
        rotates_in_part: the family may rotate less than a whole head.
        renamed: {a rope type as this family spells it: what it means}.
    """

    head_dim: int
    max_positions: int
    theta: float = 10000.0
    share: float = 1.0
    original_positions: int | None = None
    rotates_in_part: bool = False
    renamed: Mapping[str, str] | None = None


def read_rope(fields: Fields, scope: RopeScope) -> RopeConfig:
    """The rotary embedding of a model whose layers share one.

    Raises:
        ModelError: naming the file and the key; also where the old and the new spelling are both there and differ.
    """
    entries = [entry for entry in (fields.group(section) for section in _SECTIONS) if entry is not None and entry.keys]
    ropes = [parse_rope(entry, scope) for entry in entries or [Fields({}, fields.path)]]
    if len(set(ropes)) > 1:
        raise ModelError(f"{fields.path}: 'rope_scaling' and 'rope_parameters' contradict each other; keep one of them")
    return ropes[0]


def parse_rope(entry: Fields, scope: RopeScope) -> RopeConfig:
    """One entry: the content of `rope_scaling`, of `rope_parameters`, or of a layer type within it."""
    kind = entry.text("rope_type", entry.text("type", "default"))
    kind = (scope.renamed or {}).get(kind, kind)
    if kind == "dynamic":
        raise ModelError(
            f"{entry.path}: rope type 'dynamic' is not supported: its frequencies change while a sequence grows, and "
            "keys that are cached already would no longer fit; serve the model within its trained length (remove the "
            "entry), or use yarn"
        )
    if kind not in _READERS:
        raise ModelError(
            f"{entry.path}: rope type {kind!r} is not supported; supported are {', '.join(sorted(_READERS))}"
        )
    known, read = _READERS[kind]
    unknown = [key for key in entry.keys if key not in known | _NEUTRAL_KEYS]
    if unknown:
        raise ModelError(f"{entry.path}: rope type {kind!r} has no key {unknown[0]!r}")
    return RopeConfig(entry.number("rope_theta", scope.theta), _rotary_dim(entry, scope), read(entry, scope))


def _rotary_dim(entry: Fields, scope: RopeScope) -> int:
    key = "partial_rotary_factor"
    share = entry.number(key, scope.share)
    if share == 1.0:
        return scope.head_dim
    if not scope.rotates_in_part:
        raise ModelError(
            f"{entry.path}: {key!r} is {share}; models of this family rotate whole heads, so only 1 is supported"
        )
    if not 0.0 < share < 1.0:
        raise ModelError(f"{entry.path}: {key!r} must be above 0 and at most 1, got {share}")
    rotary_dim = int(scope.head_dim * share)
    if rotary_dim < 2 or rotary_dim % 2 != 0:
        raise ModelError(
            f"{entry.path}: {key!r} {share} rotates {rotary_dim} elements of a head of {scope.head_dim}; elements are "
            "rotated in pairs, so their number must be even"
        )
    return rotary_dim


def _default(_entry: Fields, _scope: RopeScope) -> RopeScaling | None:
    return None


def _linear(entry: Fields, _scope: RopeScope) -> RopeScaling:
    return LinearScaling(entry.number("factor"))


def _llama3(entry: Fields, scope: RopeScope) -> RopeScaling:
    return Llama3Scaling(
        factor=entry.number("factor"),
        low_freq_factor=entry.number("low_freq_factor"),
        high_freq_factor=entry.number("high_freq_factor"),
        original_max_position_embeddings=_original_positions(entry, scope),
    )


def _yarn(entry: Fields, scope: RopeScope) -> RopeScaling:
    original = _original_positions(entry, scope)
    factor = entry.number("factor", scope.max_positions / original)
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=entry.number("attention_factor", _yarn_attention_factor(entry, factor)),
        beta_fast=entry.number("beta_fast", 32.0),
        beta_slow=entry.number("beta_slow", 1.0),
        truncate=entry.flag("truncate", True),
    )


def _yarn_attention_factor(entry: Fields, factor: float) -> float:
    numerator, denominator = (_weight(entry, key) for key in ("mscale", "mscale_all_dim"))
    if numerator and denominator:
        return _mscale(factor, numerator) / _mscale(factor, denominator)
    return _mscale(factor, 1.0)


def _weight(entry: Fields, key: str) -> float:
    weight = entry.number(key, 0.0)
    if weight < 0.0:
        raise ModelError(f"{entry.path}: {key!r} must not be negative, got {weight}")
    return weight


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(entry: Fields, scope: RopeScope) -> RopeScaling:
    original = _original_positions(entry, scope)
    short, long = (_divisors(entry, key) for key in ("short_factor", "long_factor"))
    factor = entry.number("factor", scope.max_positions / original)
    attention_factor = entry.number("attention_factor", _longrope_attention_factor(factor, original))
    if short == long:
        return DivisorScaling(short, attention_factor)
    return LongRopeScaling(short, long, original, attention_factor)


def _longrope_attention_factor(factor: float, original_positions: int) -> float:
    if factor <= 1.0 or original_positions <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original_positions))


def _divisors(entry: Fields, key: str) -> tuple[float, ...]:
    divisors = entry.numbers(key)
    return divisors if divisors else _refuse_absent(entry, key)


def _refuse_absent(entry: Fields, key: str) -> NoReturn:
    raise ModelError(f"{entry.path}: rope type 'longrope' needs the key {key!r}")


def _original_positions(entry: Fields, scope: RopeScope) -> int:
    if scope.original_positions is not None:
        return scope.original_positions
    return entry.integer("original_max_position_embeddings", scope.max_positions)


_Read = Callable[[Fields, RopeScope], RopeScaling | None]
_READERS: Mapping[str, tuple[frozenset[str], _Read]] = {
    "default": (frozenset(), _default),
    "linear": (frozenset({"factor"}), _linear),
    "llama3": (frozenset({"factor", "low_freq_factor", "high_freq_factor"}), _llama3),
    "yarn": (
        frozenset({"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}),
        _yarn,
    ),
    "longrope": (frozenset({"factor", "attention_factor", "short_factor", "long_factor"}), _longrope),
}
"""{rope type: (the keys that only it has, its reader)}"""


def rope_json(rope: RopeConfig, head_dim: int, max_positions: int) -> dict[str, Any]:
    """The keys of config.json that make `read_rope` return `rope`: rope_theta, rope_scaling and what else it takes."""
    values: dict[str, Any] = {"rope_theta": rope.theta, "rope_scaling": _scaling_json(rope.scaling, max_positions)}
    if rope.rotary_dim != head_dim:
        values["partial_rotary_factor"] = rope.rotary_dim / head_dim
    if isinstance(rope.scaling, LongRopeScaling):  # older readers look for it here only
        values["original_max_position_embeddings"] = rope.scaling.original_max_position_embeddings
    return values


def _scaling_json(scaling: RopeScaling | None, max_positions: int) -> dict[str, Any] | None:
    match scaling:
        case None:
            return None
        case LinearScaling():
            return {"rope_type": "linear", "factor": scaling.factor}
        case Llama3Scaling():
            return {
                "rope_type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_max_position_embeddings,
            }
        case YarnScaling():
            return {
                "rope_type": "yarn",
                "factor": scaling.factor,
                "original_max_position_embeddings": scaling.original_max_position_embeddings,
                "attention_factor": scaling.attention_factor,
                "beta_fast": scaling.beta_fast,
                "beta_slow": scaling.beta_slow,
                "truncate": scaling.truncate,
            }
        case LongRopeScaling():
            original = scaling.original_max_position_embeddings
            divisors = (scaling.short_divisors, scaling.long_divisors)
            return _longrope_json(divisors, scaling.attention_factor, original, max_positions)
        case DivisorScaling():
            # Two equal sets: the same frequencies at any length.
            divisors = (scaling.divisors, scaling.divisors)
            return _longrope_json(divisors, scaling.attention_factor, max_positions, max_positions)
    raise AssertionError(f"no spelling for {scaling}")


def _longrope_json(
    divisors: tuple[tuple[float, ...], tuple[float, ...]], attention_factor: float, original: int, max_positions: int
) -> dict[str, Any]:
    # "type" and nothing more than needed: older readers of phi3 accept exactly three keys.
    values: dict[str, Any] = {
        "type": "longrope",
        "short_factor": list(divisors[0]),
        "long_factor": list(divisors[1]),
    }
    if attention_factor != _longrope_attention_factor(max_positions / original, original):
        values["attention_factor"] = attention_factor
    return values
