"""The supervisor's hand on the front ends: starts them, speaks to them, replaces those that die."""

from __future__ import annotations

import multiprocessing
import socket
import time
from collections.abc import Iterator, MutableSequence
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast, final

from tokenloom.server.child_process import describe_exit, start_child
from tokenloom.server.front_end import FrontEndSetup, run_front_end
from tokenloom.server.reports import ChildFailed, Drain, EngineDown, EngineUp, Serving
from tokenloom.server.restart_policy import RestartPolicy
from tokenloom.server.settings import ServerSettings

__all__ = ["FrontEndDied", "FrontEndPool"]

_MAX_RESTARTS, _BACKOFF_S = 5, 1.0


@dataclass(frozen=True, slots=True)
class FrontEndDied:
    """A front end's process has ended; while the server serves, without being asked to.

    Attributes:
        name: as the engine knows it.
        reason: in words.
        failure: what it said, if it could.
        pause_s: when another one takes its place; None: never.
    """

    name: str
    reason: str
    failure: ChildFailed | None
    pause_s: float | None


@dataclass(slots=True)
class _FrontEnd:
    """One of the pool, and the process that fills its place, if there is one now."""

    index: int
    policy: RestartPolicy
    num_started: int = 0
    process: BaseProcess | None = None
    channel: Connection | None = None
    is_serving: bool = False
    failure: ChildFailed | None = None
    restart_at_s: float | None = None

    @property
    def name(self) -> str:
        return f"front-end-{self.index}.{self.num_started}"


@final
class FrontEndPool:
    """All front ends of one server."""

    def __init__(self, settings: ServerSettings, listener: socket.socket, folder: Path, app: str) -> None:
        """`app` is "module:function"; see `FrontEndSetup`."""
        self._settings = settings
        self._listener = listener
        self._folder = folder
        self._app = app
        array = multiprocessing.get_context("spawn").RawArray("q", settings.workers)
        self._reserved = cast(MutableSequence[int], array)
        self._front_ends = [
            _FrontEnd(index, RestartPolicy(_MAX_RESTARTS, _BACKOFF_S)) for index in range(settings.workers)
        ]
        self._engine: EngineUp | None = None
        self._is_ending = False

    @property
    def is_serving(self) -> bool:
        """Whether all of them accept connections and have had an engine."""
        return all(front_end.is_serving for front_end in self._front_ends)

    @property
    def num_running(self) -> int:
        """Processes."""
        return sum(front_end.process is not None for front_end in self._front_ends)

    def start(self) -> None:
        """Starts all."""
        for front_end in self._front_ends:
            self._start(front_end)

    def watched(self) -> list[Any]:
        """What becomes readable when there is something to take."""
        pairs = [(each.process.sentinel, each.channel) for each in self._front_ends if each.process is not None]
        return list(chain.from_iterable(pairs))

    def patience_s(self) -> float | None:
        """How long until `take` has something to do by itself; None: never."""
        times = [front_end.restart_at_s for front_end in self._front_ends if front_end.restart_at_s is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def tell(self, report: EngineUp | EngineDown | Drain) -> None:
        """Tells all of them, and of the engine also those to come."""
        match report:
            case EngineUp():
                self._engine = report
            case EngineDown():
                self._engine = None
            case Drain():
                self._is_ending = True
                for front_end in self._front_ends:
                    front_end.restart_at_s = None
        for front_end in self._front_ends:
            _tell(front_end, report)

    def take(self) -> Iterator[FrontEndDied]:
        """The front ends that have died since the last call; starts others when it is time."""
        for front_end in self._front_ends:
            if front_end.restart_at_s is not None and time.monotonic() >= front_end.restart_at_s:
                self._start(front_end)
            if front_end.process is None:
                continue
            self._take_reports(front_end)
            if front_end.process.exitcode is not None:
                yield self._bury(front_end, front_end.process)

    def kill(self) -> None:
        """Ends all at once; idempotent."""
        for front_end in self._front_ends:
            if front_end.process is not None:
                front_end.process.kill()
                front_end.process.join()
                _forget(front_end)

    def _start(self, front_end: _FrontEnd) -> None:
        front_end.num_started += 1
        front_end.restart_at_s, front_end.failure = None, None
        # What a dead one had reserved is free.
        self._reserved[front_end.index] = 0
        front_end.channel, theirs = multiprocessing.Pipe()
        setup = FrontEndSetup(
            name=front_end.name,
            index=front_end.index,
            settings=self._settings,
            listener=self._listener,
            channel=theirs,
            reserved=self._reserved,
            folder=self._folder,
            app=self._app,
        )
        front_end.process = start_child(run_front_end, setup, name=f"tokenloom-{front_end.name}")
        theirs.close()
        if self._engine is not None:
            _tell(front_end, self._engine)

    def _take_reports(self, front_end: _FrontEnd) -> None:
        assert front_end.channel is not None
        try:
            while front_end.channel.poll():
                match report := front_end.channel.recv():
                    case Serving():
                        front_end.is_serving = True
                        front_end.policy.note_working(time.monotonic())
                    case ChildFailed():
                        front_end.failure = report
        except (EOFError, ConnectionResetError):
            return

    def _bury(self, front_end: _FrontEnd, process: BaseProcess) -> FrontEndDied:
        reason = f"{front_end.name} died ({describe_exit(process)})"
        if front_end.failure is not None:
            reason = f"{front_end.name} could not start: {front_end.failure.message}"
        _forget(front_end)
        now_s = time.monotonic()
        pause_s = None if self._is_ending else front_end.policy.pause_s(now_s)
        front_end.restart_at_s = None if pause_s is None else now_s + pause_s
        return FrontEndDied(front_end.name, reason, front_end.failure, pause_s)


def _tell(front_end: _FrontEnd, report: EngineUp | EngineDown | Drain) -> None:
    if front_end.channel is None:
        return
    try:
        front_end.channel.send(report)
    except (BrokenPipeError, ConnectionResetError):
        # It has died, which `take` finds out.
        return


def _forget(front_end: _FrontEnd) -> None:
    if front_end.process is not None:
        front_end.process.close()
    if front_end.channel is not None:
        front_end.channel.close()
    front_end.process, front_end.channel, front_end.is_serving = None, None, False
