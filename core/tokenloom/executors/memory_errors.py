"""Out of memory, told as such: torch reports it as a RuntimeError, in words that differ by device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tokenloom.errors import OutOfMemoryError

__all__ = ["out_of_memory"]

_CPU_WORDS = ("can't allocate memory", "not enough memory")


@contextmanager
def out_of_memory(what: str, remedy: str) -> Iterator[None]:
    """Raises OutOfMemoryError, saying what did not fit and what to try, when the device has no memory left."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        if isinstance(error, OutOfMemoryError):
            raise
        raise OutOfMemoryError(f"{what} does not fit into memory: {error}; {remedy}") from error
    except RuntimeError as error:
        if not any(words in str(error) for words in _CPU_WORDS):
            raise
        raise OutOfMemoryError(f"{what} does not fit into memory: {error}; {remedy}") from error
