"""Which layers of a GPTQ checkpoint are quantized, and how: its settings, and `dynamic`, which changes them by name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, final

from tokenloom.checkpoint.fields import Fields
from tokenloom.errors import ModelError

__all__ = ["GPTQOverrides", "GPTQScheme"]

_ALLOWED_BITS = (2, 3, 4, 8)
_LEAVE_OUT, _TAKE_IN = "-:", "+:"
_LAYOUT_KEYS = ("format", "checkpoint_format", "pack_dtype", "quant_method", "method")


@dataclass(frozen=True, slots=True)
class GPTQScheme:
    """How one layer is stored.

    Attributes:
        bits: of a code.
        group_size: input features that share a scale; -1 stands for all.
        is_reordered: whether groups are formed in another order than that of the columns.
    """

    bits: int
    group_size: int
    is_reordered: bool


@final
class GPTQOverrides:
    """Reads `bits`, `group_size`, `desc_act`, `static_groups` and `dynamic`, whose first matching pattern counts.

    Raises:
        ModelError: a value is not allowed, or a pattern is no regular expression.
    """

    def __init__(self, settings: Fields) -> None:
        self._usual = _scheme(settings, {})
        self._rules: list[tuple[re.Pattern[str], GPTQScheme | None]] = []
        dynamic = settings.group("dynamic")
        for key in () if dynamic is None else dynamic.keys:
            assert dynamic is not None
            try:
                pattern = re.compile(key.removeprefix(_LEAVE_OUT).removeprefix(_TAKE_IN))
            except re.error as error:
                raise ModelError(f"{settings.path}: 'dynamic' has {key!r}, no regular expression: {error}") from error
            if key.startswith(_LEAVE_OUT):
                self._rules.append((pattern, None))
                continue
            changes = dynamic.raw(key)
            if not isinstance(changes, dict):
                raise ModelError(f"{settings.path}: 'dynamic' must give {key!r} an object of settings, got {changes!r}")
            foreign = [name for name in _LAYOUT_KEYS if name in changes]
            if foreign:
                raise ModelError(
                    f"{settings.path}: 'dynamic' gives {key!r} its own {foreign[0]!r}, which is not supported; one "
                    "layout must hold for all layers"
                )
            self._rules.append((pattern, _scheme(settings, changes)))

    def scheme_of(self, part: str) -> GPTQScheme | None:
        """That of the layer `part`, by its full dotted name; None if it is not quantized."""
        return next((scheme for pattern, scheme in self._rules if pattern.match(part)), self._usual)


def _scheme(settings: Fields, changes: dict[str, Any]) -> GPTQScheme:
    fields = Fields(changes, settings.path)
    bits = fields.integer("bits", settings.integer("bits", maximum=32), maximum=32)
    if bits not in _ALLOWED_BITS:
        allowed = ", ".join(map(str, _ALLOWED_BITS))
        raise ModelError(f"quant=gptq reads weights of {allowed} bits, got {bits}; take a checkpoint with one of these")
    group_size = fields.integer("group_size", settings.integer("group_size", minimum=-1), minimum=-1)
    if group_size == 0:
        raise ModelError(f"{settings.path}: 'group_size' must be -1 or above 0, got 0")
    desc_act = fields.flag("desc_act", settings.flag("desc_act", False))
    static_groups = fields.flag("static_groups", settings.flag("static_groups", False))
    return GPTQScheme(bits, group_size, is_reordered=desc_act and not static_groups)
