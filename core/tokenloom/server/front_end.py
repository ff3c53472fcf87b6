"""A front end's process: an HTTP server around a client of the engine, as the supervisor says."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
from collections.abc import Iterator, MutableSequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, final

import uvicorn

from tokenloom.engine_process.fault import fault_of
from tokenloom.engine_process.linked_client import LinkedClient
from tokenloom.engine_process.zmq_link import ZmqFrontEndLink
from tokenloom.errors import TokenloomError
from tokenloom.server.child_process import begin_child, end_child
from tokenloom.server.front_end_place import FrontEndPlace
from tokenloom.server.http_protocol import guarded_protocol
from tokenloom.server.reports import ChildFailed, Drain, EngineDown, EngineUp, Serving
from tokenloom.server.settings import ServerSettings

__all__ = ["FrontEndSetup", "run_front_end", "tell_start"]

_LAST_WORDS_S = 2.0
"""Once its requests are ended, how long a connection may take to be told."""
_BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class FrontEndSetup:
    """What a front end's process is started with.

    Attributes:
        name: unique among all front ends of this server, dead ones included.
        index: its place among the front ends, which its successor takes over.
        settings: of the server.
        listener: socket to accept connections on, shared by all front ends.
        channel: to the supervisor.
        reserved: shared memory, a number for each front end; see `Places`.
        folder: for files that they share.
        app: "module:function" that makes the ASGI app from (client, settings, place, tell_start); see `TellStart`.
    """

    name: str
    index: int
    settings: ServerSettings
    listener: socket.socket
    channel: Connection
    reserved: MutableSequence[int]
    folder: Path
    app: str


def run_front_end(setup: FrontEndSetup) -> None:
    """Runs the process. Does not return."""
    begin_child(f"tokenloom-fe{setup.index}", setup.settings.log_level)
    try:
        front_end = _FrontEnd(setup)
    except (TokenloomError, OSError) as error:
        tell_start(setup.channel, error)
    else:
        gc.collect()
        # What is there now stays for good; walking through it again and again would delay streams.
        gc.freeze()
        front_end.run()
        end_child(0)


def tell_start(channel: Connection, failure: Exception | None) -> None:
    """Tells the supervisor that this front end serves, or why it cannot; then the process ends."""
    if failure is None:
        channel.send(Serving())
        return
    channel.send(ChildFailed(fault_of(failure).message, isinstance(failure, TokenloomError)))
    end_child(1)


@final
class _Server(uvicorn.Server):
    """Leaves signals alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@final
class _FrontEnd:
    def __init__(self, setup: FrontEndSetup) -> None:
        self._setup = setup
        self._client = LinkedClient()
        self._place = FrontEndPlace(setup.index, setup.settings.workers, setup.reserved, setup.folder)
        module, _, function = setup.app.partition(":")
        build_app = getattr(import_module(module), function)
        app = build_app(self._client, setup.settings, self._place, partial(tell_start, setup.channel))
        self._server = _Server(_uvicorn_config(app, setup.settings))

    def run(self) -> None:
        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        asyncio.get_running_loop().add_reader(self._setup.channel.fileno(), self._listen)
        await self._server.serve(sockets=[self._setup.listener])
        await self._client.close()

    def _listen(self) -> None:
        try:
            while self._setup.channel.poll():
                self._heed(self._setup.channel.recv())
        except EOFError:
            # The supervisor is gone, and with it whoever would end this process.
            os._exit(1)

    def _heed(self, report: EngineUp | EngineDown | Drain) -> None:
        match report:
            case EngineUp():
                self._place.num_engine_restarts = report.num_restarts
                self._client.attach(ZmqFrontEndLink(report.address, self._setup.name))
            case EngineDown():
                self._client.detach(report.reason)
            case Drain():
                self._drain(report.timeout_s)

    def _drain(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._place.is_draining = True
        self._server.should_exit = True
        loop.call_later(timeout_s, self._end_drain)
        loop.call_later(timeout_s + _LAST_WORDS_S, self._leave)

    def _end_drain(self) -> None:
        self._client.stop_all()
        self._place.end_drain()

    def _leave(self) -> None:
        self._server.force_exit = True


def _uvicorn_config(app: Any, settings: ServerSettings) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level=max(settings.log_level, "warning", key=("debug", "info", "warning", "error").index),
        access_log=settings.access_log,
        backlog=_BACKLOG,
        http=guarded_protocol(read_timeout_s=settings.read_timeout_s, write_timeout_s=settings.write_timeout_s),
        ws="none",
        server_header=False,
        lifespan="on",
    )
    if settings.access_log:
        # Its lines are of level info, and were asked for whatever else is logged.
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    return config
