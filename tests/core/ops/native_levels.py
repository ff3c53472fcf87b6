"""The native operations at each level of instructions that this machine has."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from tokenloom.ops.native import why_not_buildable
from tokenloom.ops.native_ops import native_module

LEVELS = ("portable", "avx2", "avx512", "amx")
NEEDS_COMPILER = pytest.mark.skipif(why_not_buildable() is not None, reason=str(why_not_buildable()))


def at_level(level: str) -> Iterator[ModuleType]:
    """Yields the module limited to `level`, and lifts the limit afterwards; skips what the processor lacks."""
    module = native_module()
    usual = module.isa()
    if not module.set_isa(level):
        pytest.skip(f"this processor has no {level}")
    yield module
    module.set_isa(usual)
