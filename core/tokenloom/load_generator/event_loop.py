"""Runs a measurement in the fastest event loop at hand; the first Ctrl-C ends it in good order."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from typing import Any, TypeVar

__all__ = ["run_with_stop"]

_Result = TypeVar("_Result")


def run_with_stop(main: Callable[[asyncio.Event], Coroutine[Any, Any, _Result]]) -> _Result:
    """Runs a coroutine to its end.

    Args:
        main: gets an event that the first Ctrl-C sets; a second one raises KeyboardInterrupt.
    """
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(_guarded(main))


async def _guarded(main: Callable[[asyncio.Event], Coroutine[Any, Any, _Result]]) -> _Result:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def interrupt() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    is_main = threading.current_thread() is threading.main_thread()
    if is_main:
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        return await main(stop)
    finally:
        if is_main:
            loop.remove_signal_handler(signal.SIGINT)


def _new_loop() -> asyncio.AbstractEventLoop:
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
