"""The supervisor's hand on the engine's process: starts it, hears of it, ends it, starts it again."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, MutableSequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast, final

from tokenloom.engine_process.heartbeat import Heartbeat, period_s
from tokenloom.engine_process.messages import FrontEndGone, Stop
from tokenloom.engine_process.zmq_link import ZmqControl
from tokenloom.server.child_process import describe_exit, start_child
from tokenloom.server.engine_child import EngineSetup, run_engine
from tokenloom.server.reports import ChildFailed, Composed, EngineReady
from tokenloom.server.restart_policy import RestartPolicy
from tokenloom.server.settings import ServerSettings

__all__ = ["EngineDied", "EngineKeeper"]

_SUSPENDED_S = 2.0
"""A supervisor that has not looked for so long was itself suspended, and its engine probably, too."""


@dataclass(frozen=True, slots=True)
class EngineDied:
    """The engine's process has ended without being asked to.

    Attributes:
        reason: in words.
        failure: what it said, if it could.
        pause_s: when it is started again; None: never.
    """

    reason: str
    failure: ChildFailed | None
    pause_s: float | None


@final
class EngineKeeper:
    """One engine at a time; each new one, a generation, has an address of its own.

    Attributes:
        is_ready: whether the engine takes requests.
        num_restarts: engines that were started after the first one.
    """

    def __init__(self, overrides: tuple[str, ...], config_dir: Path | None, folder: Path) -> None:
        self.is_ready = False
        self.num_restarts = 0
        self._overrides = overrides
        self._config_dir = config_dir
        self._folder = folder
        self._beat = cast(MutableSequence[float], multiprocessing.get_context("spawn").RawArray("d", 1))
        self._heartbeat = Heartbeat(self._beat)
        self._settings = ServerSettings()
        self._config: bytes | None = None
        self._policy = RestartPolicy(0, 0.0)
        self._generation = 0
        self._process: BaseProcess | None = None
        self._reports: Connection | None = None
        self._control: ZmqControl | None = None
        self._restart_at_s: float | None = None
        self._failure: ChildFailed | None = None
        self._is_hung = False
        self._looked_s = 0.0

    @property
    def address(self) -> str:
        """Where this generation is reached."""
        return f"ipc://{self._folder}/engine-{self._generation}"

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None

    def watched(self) -> list[Any]:
        """What becomes readable when there is something to take."""
        return [] if self._process is None else [self._process.sentinel, self._reports]

    def patience_s(self) -> float | None:
        """How long until `take` has something to do by itself; None: never."""
        if self._restart_at_s is not None:
            return max(0.0, self._restart_at_s - time.monotonic())
        if self.is_ready and self._settings.step_timeout_s is not None:
            return period_s(self._settings.step_timeout_s)
        return None

    def start(self) -> None:
        """Starts the first generation, or the next one."""
        assert self._process is None, f"generation {self._generation} still runs"
        self._restart_at_s, self._failure, self._is_hung = None, None, False
        self._heartbeat.clear()
        self._reports, theirs = multiprocessing.Pipe(duplex=False)
        setup = EngineSetup(
            self._overrides, self._config_dir, self._config, self.address, theirs, cast(Any, self._beat)
        )
        self._process = start_child(run_engine, setup, name="tokenloom-engine")
        theirs.close()

    def take(self) -> Iterator[Composed | EngineReady | EngineDied]:
        """What has happened since the last call; restarts the engine when it is time, and ends one that hangs."""
        if self._restart_at_s is not None and time.monotonic() >= self._restart_at_s:
            self._generation += 1
            self.num_restarts += 1
            self.start()
        if self._process is None:
            return
        yield from self._take_reports()
        if self._process.exitcode is not None:
            yield self._bury(self._process)
        elif self.is_ready and self._settings.step_timeout_s is not None:
            self._end_hung(self._process, self._settings.step_timeout_s)

    def tell_gone(self, front_end: str) -> None:
        """Lets the engine abort what a dead front end had submitted."""
        if self._control is not None:
            self._control.send(FrontEndGone(front_end))

    def stop(self) -> None:
        """Asks the engine to end after its step; one that is not ready is ended at once, and none is started again."""
        self._restart_at_s = None
        self._policy = RestartPolicy(0, 0.0)
        if self._control is not None:
            self._control.send(Stop())
        else:
            self.kill()

    def kill(self) -> None:
        """Ends the process at once; idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._forget()

    def _take_reports(self) -> Iterator[Composed | EngineReady]:
        assert self._reports is not None
        try:
            while self._reports.poll():
                match report := self._reports.recv():
                    case ChildFailed():
                        self._failure = report
                    case Composed():
                        self._settings, self._config = report.settings, report.config
                        self._policy = RestartPolicy(
                            report.settings.max_engine_restarts, report.settings.restart_backoff_s
                        )
                        yield report
                    case EngineReady():
                        self.is_ready = True
                        self._control = ZmqControl(self.address)
                        self._policy.note_working(time.monotonic())
                        yield report
        except EOFError:
            return

    def _end_hung(self, process: BaseProcess, timeout_s: float) -> None:
        now_s = time.monotonic()
        was_suspended, self._looked_s = now_s - self._looked_s > _SUSPENDED_S, now_s
        if not was_suspended and not self._is_hung and self._heartbeat.age_s() > timeout_s:
            self._is_hung = True
            process.kill()

    def _bury(self, process: BaseProcess) -> EngineDied:
        reason = f"the engine died ({describe_exit(process)})"
        if self._is_hung:
            reason = f"the engine hung: no sign of life for server.step_timeout_s={self._settings.step_timeout_s:g}"
        elif self._failure is not None:
            fault = "died" if self.is_ready else "could not start"
            reason = f"the engine {fault}: {self._failure.message}"
        self._forget()
        now_s = time.monotonic()
        pause_s = self._policy.pause_s(now_s)
        self._restart_at_s = None if pause_s is None else now_s + pause_s
        return EngineDied(reason, self._failure, pause_s)

    def _forget(self) -> None:
        if self._process is not None:
            self._process.close()
        if self._reports is not None:
            self._reports.close()
        if self._control is not None:
            self._control.close()
        self._process, self._reports, self._control, self.is_ready = None, None, None, False
