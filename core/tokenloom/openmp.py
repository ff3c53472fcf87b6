"""What must be said to the OpenMP library before torch loads it."""

from __future__ import annotations

import os

__all__ = ["choose_spin"]


def choose_spin() -> None:
    """Sets how long threads that wait for each other spin, unless GOMP_SPINCOUNT says so.

    Too short a spin costs a quarter of the speed of an idle machine, a long one several times the work itself beside
    another busy process. It is read once, when torch is imported.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
