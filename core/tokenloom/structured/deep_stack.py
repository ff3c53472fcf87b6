"""Runs native code that recurses as deeply as its input is nested, and that would end the process on a short stack."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["on_deep_stack"]

T = TypeVar("T")

# Address space only: pages that are not touched cost nothing.
_STACK_BYTES = 512 << 20
_starting = threading.Lock()


def on_deep_stack(work: Callable[[], T]) -> T:
    """Returns what `work` returns, or raises what it raises; it runs in a thread of its own."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 (raised below, in the thread that asked)
            errors.append(error)

    with _starting:
        usual_bytes = threading.stack_size(_STACK_BYTES)
        try:
            thread = threading.Thread(target=run, name="deep-stack", daemon=True)
            thread.start()
        finally:
            threading.stack_size(usual_bytes)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
