"""An engine in a thread of the same process, with clients for event loops: for tests, and where one process will do."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from typing import final

from tokenloom.engine_process.engine_loop import EngineLoop
from tokenloom.engine_process.link import EngineLink, FrontEndLink
from tokenloom.engine_process.linked_client import LinkedClient
from tokenloom.engine_process.loop_observer import LoopObserver
from tokenloom.engine_process.messages import FromEngine, FrontEndGone, Stop, ToEngine
from tokenloom.engine_process.served_engine import ServedEngine, served_engine
from tokenloom.errors import EngineDeadError
from tokenloom.llm import LLM

__all__ = ["LocalEngine"]


@final
class LocalEngine:
    """An engine loop in a thread.

    Example:
        >>> with LocalEngine(LLM()) as engine:  # doctest: +SKIP
        ...     client = engine.connect()  # inside a running event loop; any number of them
    """

    def __init__(self, llm: LLM | ServedEngine, *, observers: Sequence[LoopObserver] = ()) -> None:
        """Nobody else may use `llm` until this is closed."""
        self._link = _EngineEnd()
        self._num_clients = 0
        served = served_engine(llm) if isinstance(llm, LLM) else llm
        self._loop = EngineLoop(served, self._link, observers=observers)
        self._thread = threading.Thread(target=self._run, name="tokenloom-engine", daemon=True)
        self._thread.start()

    def connect(self, *, on_ready: Callable[[], None] | None = None) -> LinkedClient:
        """A client for the running event loop. Requests can be sent at once; close it before the loop ends."""
        self._num_clients += 1
        client = LinkedClient(on_ready=on_ready)
        client.attach(_FrontEndEnd(f"local-{self._num_clients}", self._link))
        client.take_info(self._loop.info)
        return client

    def close(self) -> None:
        """Ends the loop; the model is left as it is. Idempotent."""
        self._link.put("", Stop())
        self._thread.join()

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            self._loop.run()
        except EngineDeadError:
            # Every client has been told.
            return


@final
class _EngineEnd(EngineLink):
    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[tuple[str, ToEngine]] = queue.SimpleQueue()
        self._front_ends: dict[str, Callable[[FromEngine], None]] = {}

    def put(self, front_end: str, message: ToEngine) -> None:
        """Hands a message to the engine, from any thread."""
        self._inbox.put((front_end, message))

    def connect(self, front_end: str, deliver: Callable[[FromEngine], None] | None) -> None:
        """Says how a front end takes messages; None: no more."""
        if deliver is None:
            self._front_ends.pop(front_end, None)
        else:
            self._front_ends[front_end] = deliver

    def receive(self, timeout_s: float) -> list[tuple[str, ToEngine]]:
        messages: list[tuple[str, ToEngine]] = []
        try:
            messages.append(self._inbox.get(block=timeout_s > 0.0, timeout=timeout_s or None))
            while True:
                messages.append(self._inbox.get_nowait())
        except queue.Empty:
            return messages

    def send(self, front_end: str, message: FromEngine) -> None:
        deliver = self._front_ends.get(front_end)
        if deliver is None:
            return
        try:
            deliver(message)
        except RuntimeError:
            # Its event loop has ended without closing the client.
            self.connect(front_end, None)
            self.put("", FrontEndGone(front_end))

    def close(self) -> None:
        self._front_ends.clear()


@final
class _FrontEndEnd(FrontEndLink):
    def __init__(self, name: str, engine: _EngineEnd) -> None:
        self._name = name
        self._engine = engine
        self._is_open = True

    def start(self, on_message: Callable[[FromEngine], None]) -> None:
        loop = asyncio.get_running_loop()

        def take(message: FromEngine) -> None:
            if self._is_open:
                on_message(message)

        def deliver(message: FromEngine) -> None:
            loop.call_soon_threadsafe(take, message)

        self._engine.connect(self._name, deliver)

    def send(self, message: ToEngine) -> None:
        self._engine.put(self._name, message)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._engine.put("", FrontEndGone(self._name))
            self._engine.connect(self._name, None)
