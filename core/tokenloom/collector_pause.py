"""Imports without the garbage collector, which walks all that they have made so far again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collector_paused"]


@contextmanager
def collector_paused() -> Iterator[None]:
    """Around imports: modules, classes and functions live as long as the process.

    The block runs without the garbage collector, which then never looks at what exists by its end, until `LLM.close`
    lets it. Modules of torch and of this library are a million objects: walking them takes a tenth of a start. It is
    for a process that has just begun; in a later one garbage that exists by then would stay as well.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
