"""An event loop whose time stands still while something runs, and jumps to the next timer when nothing does."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run_in_virtual_time"]

_Result = TypeVar("_Result")


def run_in_virtual_time(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Runs a coroutine that waits for nothing but timers and other coroutines; it starts at 0.

    In it, `asyncio.get_running_loop().time()` is the clock.
    """
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(main)


class _JumpingSelector(selectors.SelectSelector):
    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everything waits, and no timer is set"
        self.now_s += max(0.0, timeout)
        return super().select(0)


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s
