"""The compiled products. Nothing is compiled until they are asked for."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

from tokenloom.ops.native import load_extension

__all__ = ["load_kernels"]

_CSRC = Path(__file__).parent / "csrc"


@cache
def load_kernels() -> ModuleType:
    """The extension; the first call may build it.

    Raises:
        NativeBuildError: it cannot be built here; says what to install, and to choose quant=int8.
    """
    return load_extension(
        "tokenloom_low_bit",
        sources=[_CSRC / "binding.cpp", _CSRC / "unpack_row.cpp"],
        kernels=[_CSRC / "low_bit.cpp", _CSRC / "prepare_rows.cpp"],
        include_dirs=[_CSRC],
        instead="quant=int8",
    )
