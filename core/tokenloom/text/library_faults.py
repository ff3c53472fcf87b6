"""The border to the `tokenizers` library, whose faults are all of one bare kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tokenloom.errors import TokenloomError

__all__ = ["library_faults_as"]


@contextmanager
def library_faults_as(error_type: type[TokenloomError], problem: str) -> Iterator[None]:
    """Turns what the library raises inside the block into `error_type`, with `problem` in front of the message.

    The library refuses with a bare `Exception`; where its own code breaks, it raises a PanicException, which cannot be
    imported and is no `Exception`. Every other error passes through.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise error_type(f"{problem}: {error}") from error
