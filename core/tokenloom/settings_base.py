"""The base of everything that a configuration holds: plugins' settings, the core's, and commands' own."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

__all__ = ["Settings"]


class Settings(BaseModel):
    """Frozen, with unknown keys forbidden, no coercion (`true` never becomes 1), and finite numbers only.

    A result file states the settings, and JSON has no infinity; arithmetic with one gives NaN soon. A setting that can
    be off allows null.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
