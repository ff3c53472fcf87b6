"""The main process of `tokenloom serve`: starts the engine and the front ends, watches them, ends them in order.

It holds the listening socket, loads no model and no torch, and touches no request.
"""

from __future__ import annotations

import logging
import resource
import socket
import time
from enum import Enum, auto
from multiprocessing.connection import wait
from pathlib import Path
from typing import final

import click

from tokenloom.errors import ConfigError, EngineDeadError, TokenloomError
from tokenloom.server.engine_keeper import EngineDied, EngineKeeper
from tokenloom.server.front_end_pool import FrontEndDied, FrontEndPool
from tokenloom.server.listener import listen, url_of
from tokenloom.server.log_lines import log_to_stderr
from tokenloom.server.private_folder import private_folder
from tokenloom.server.reports import ChildFailed, Composed, Drain, EngineDown, EngineReady, EngineUp
from tokenloom.server.settings import ServerSettings
from tokenloom.server.stop_signals import StopSignals

__all__ = ["APP", "Supervisor"]

APP = "tokenloom.server.front_end_app:front_end_app"

_log = logging.getLogger(__name__)
_LAST_WORDS_S = 5.0
"""Beyond the time to drain, how long processes may take to end before they are killed."""
_SIGNAL_EXIT = 128
_MAX_OPEN_FILES = 65_536
"""For each process. Hard limits can be a billion, and some libraries walk through all that could be open."""


class _Phase(Enum):
    """STARTING: nothing was announced yet. DRAINING: the front ends end their requests. STOPPING: the engine ends."""

    STARTING = auto()
    SERVING = auto()
    DRAINING = auto()
    STOPPING = auto()


@final
class Supervisor:
    """Runs one server from start to end. Called in the main thread, which alone gets signals."""

    def __init__(self, overrides: tuple[str, ...] = (), config_dir: Path | None = None, *, app: str = APP) -> None:
        """`app` is "module:function", what front ends run; see `FrontEndSetup`."""
        self._overrides = overrides
        self._config_dir = config_dir
        self._app = app
        self._phase = _Phase.STARTING
        self._settings = ServerSettings()
        self._listener: socket.socket | None = None
        self._front_ends: FrontEndPool | None = None
        self._model = ""
        self._deadline_s = 0.0
        self._error: TokenloomError | None = None

    def run(self) -> int:
        """Serves until a signal comes; returns the exit code: 0 after SIGTERM or Ctrl-C, once requests have ended.

        Raises:
            ConfigError: the configuration is wrong, or the address is in use.
            EngineDeadError: a process cannot be started, or died too often.
        """
        _raise_file_limit()
        with private_folder() as self._folder, StopSignals() as signals:
            self._engine = EngineKeeper(self._overrides, self._config_dir, self._folder)
            try:
                self._engine.start()
                while self._engine.is_running or self._phase is not _Phase.STOPPING:
                    self._turn(signals)
                    if len(signals.numbers) > 1:
                        return _SIGNAL_EXIT + signals.numbers[-1]
            finally:
                self._kill()
        if self._error is not None:
            raise self._error
        return 0

    def _turn(self, signals: StopSignals) -> None:
        front_ends = self._front_ends
        watched = [signals, *self._engine.watched(), *(front_ends.watched() if front_ends else ())]
        wait(watched, self._patience_s())
        signals.drain()
        if signals.numbers and self._phase in (_Phase.STARTING, _Phase.SERVING):
            self._drain(self._settings.drain_timeout_s)
        for event in self._engine.take():
            self._heed_engine(event)
        for died in front_ends.take() if front_ends else ():
            self._heed_front_end(died)
        self._advance()

    def _patience_s(self) -> float | None:
        times = [self._engine.patience_s(), self._front_ends.patience_s() if self._front_ends else None]
        if self._phase in (_Phase.DRAINING, _Phase.STOPPING):
            times.append(max(0.0, self._deadline_s - time.monotonic()))
        known = [time_s for time_s in times if time_s is not None]
        return min(known) if known else None

    def _advance(self) -> None:
        """Goes on to the next phase when its time has come."""
        is_late = time.monotonic() >= self._deadline_s
        match self._phase:
            case _Phase.STARTING:
                if self._front_ends is not None and self._front_ends.is_serving and self._engine.is_ready:
                    self._phase = _Phase.SERVING
                    self._announce()
            case _Phase.DRAINING:
                if self._front_ends is not None and is_late:
                    self._front_ends.kill()
                if self._front_ends is None or not self._front_ends.num_running:
                    self._phase, self._deadline_s = _Phase.STOPPING, time.monotonic() + _LAST_WORDS_S
                    self._engine.stop()
            case _Phase.STOPPING:
                if is_late:
                    self._engine.kill()
            case _Phase.SERVING:
                pass

    # ---- the engine ----

    def _heed_engine(self, event: Composed | EngineReady | EngineDied) -> None:
        match event:
            case Composed():
                # A signal may have come in the same turn: then nothing is started any more.
                if self._front_ends is None and self._phase is _Phase.STARTING:
                    self._open(event.settings)
            case EngineReady():
                self._model = event.model
                if self._front_ends is not None:
                    self._front_ends.tell(EngineUp(self._engine.address, self._engine.num_restarts))
                if self._engine.num_restarts:
                    _log.warning("the engine is back")
            case EngineDied():
                self._heed_death(event)

    def _open(self, settings: ServerSettings) -> None:
        self._settings = settings
        log_to_stderr(settings.log_level)
        self._listener = listen(settings.host, settings.port)
        self._front_ends = FrontEndPool(settings, self._listener, self._folder, self._app)
        self._front_ends.start()

    def _heed_death(self, died: EngineDied) -> None:
        if self._phase is _Phase.STOPPING:
            return
        if self._phase is _Phase.STARTING:
            raise _start_error(died.failure, died.reason)
        will_return = died.pause_s is not None and self._phase is _Phase.SERVING
        if self._front_ends is not None:
            self._front_ends.tell(EngineDown(f"{died.reason}{'; it is being restarted' if will_return else ''}"))
        if self._phase is _Phase.DRAINING:
            self._engine.stop()
        elif died.pause_s is None:
            self._give_up(f"{died.reason}; it was restarted {self._settings.max_engine_restarts} times in a row")
        else:
            _log.error("%s; it is restarted%s", died.reason, f" in {died.pause_s:g} s" if died.pause_s else "")

    # ---- front ends ----

    def _heed_front_end(self, died: FrontEndDied) -> None:
        self._engine.tell_gone(died.name)
        if self._phase is _Phase.STARTING:
            raise _start_error(died.failure, died.reason)
        if self._phase is not _Phase.SERVING:
            return
        if died.pause_s is None:
            self._give_up(f"{died.reason}, as several before it did")
        else:
            _log.error("%s; its connections are lost, another one takes its place", died.reason)

    # ---- the end ----

    def _announce(self) -> None:
        assert self._listener is not None
        click.echo(f"listening on {url_of(self._listener)} ({self._model})")

    def _give_up(self, reason: str) -> None:
        self._error = EngineDeadError(reason)
        self._drain(0.0)

    def _drain(self, timeout_s: float) -> None:
        self._phase, self._deadline_s = _Phase.DRAINING, time.monotonic() + timeout_s + _LAST_WORDS_S
        if self._listener is not None:
            self._listener.close()
        if self._front_ends is not None:
            self._front_ends.tell(Drain(timeout_s))

    def _kill(self) -> None:
        if self._front_ends is not None:
            self._front_ends.kill()
        self._engine.kill()
        if self._listener is not None:
            self._listener.close()


def _raise_file_limit() -> None:
    """Each connection is an open file, and the usual soft limit of 1024 is a promise to programs that use select().

    Children inherit it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError) as error:
            _log.warning("at most %d files and connections can be open at a time: %s", soft, error)


def _start_error(failure: ChildFailed | None, reason: str) -> TokenloomError:
    """What the user is told of a server that could not start; a child's own words need no frame."""
    if failure is None:
        return EngineDeadError(f"{reason} before the server was ready")
    return ConfigError(failure.message) if failure.is_mistake else EngineDeadError(failure.message)
