"""Links between processes of one machine: msgpack over ZeroMQ, on a socket file that the engine binds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import final

import msgspec
import zmq
import zmq.asyncio

from tokenloom.engine_process.fault import Fault
from tokenloom.engine_process.link import EngineLink, FrontEndLink
from tokenloom.engine_process.messages import FromEngine, Refused, ToEngine

__all__ = ["ZmqControl", "ZmqEngineLink", "ZmqFrontEndLink"]

_log = logging.getLogger(__name__)
_LINGER_MS = 500
_MAX_MESSAGES = 1000
"""Of one `receive`: streams must not wait for ever for a flood of messages to end."""


@final
class ZmqEngineLink(EngineLink):
    """A ROUTER. It queues without limit, so it never waits; what is queued is bounded by what requests generate."""

    def __init__(self, address: str) -> None:
        """`address` is an ipc:// address in a folder that only this user may enter."""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        _set_options(self._socket)
        self._socket.bind(address)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)

    def receive(self, timeout_s: float) -> list[tuple[str, ToEngine]]:
        if timeout_s > 0.0:
            self._socket.poll(max(1, round(1000 * timeout_s)))
        messages: list[tuple[str, ToEngine]] = []
        while len(messages) < _MAX_MESSAGES:
            try:
                identity, data = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            front_end = identity.decode("latin-1")
            try:
                messages.append((front_end, self._decoder.decode(data)))
            except msgspec.MsgspecError as error:
                self._refuse(front_end, data, error)
        return messages

    def send(self, front_end: str, message: FromEngine) -> None:
        self._socket.send_multipart((front_end.encode("latin-1"), self._encoder.encode(message)), zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def _refuse(self, front_end: str, data: bytes, error: msgspec.MsgspecError) -> None:
        """Front ends check what they send, so this is a fault of ours; whoever waits for an answer gets one."""
        _log.error("%s sent what cannot be read: %s", front_end, error)
        content = msgspec.msgpack.decode(data)
        if isinstance(content, dict) and isinstance(content.get("request_id"), str):
            fault = Fault("internal", f"the engine could not read it: {error}")
            self.send(front_end, Refused(content["request_id"], fault))


@final
class ZmqFrontEndLink(FrontEndLink):
    """A DEALER in an asyncio event loop."""

    def __init__(self, address: str, name: str) -> None:
        """`name` is unique among all front ends that ever connect to this engine."""
        self._address = address
        # The process's context: ending one of its own would wait for what a dead engine never takes.
        self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        _set_options(self._socket)
        self._socket.setsockopt(zmq.IDENTITY, name.encode())
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._receiving: asyncio.Task[None] | None = None

    def start(self, on_message: Callable[[FromEngine], None]) -> None:
        self._socket.connect(self._address)
        self._receiving = asyncio.get_running_loop().create_task(self._receive(on_message))

    def send(self, message: ToEngine) -> None:
        # Without a limit on the queue this is done when it returns; there is nothing to wait for.
        self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)

    def close(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None
            self._socket.close()

    async def _receive(self, on_message: Callable[[FromEngine], None]) -> None:
        # A message may say that the engine is dead; then this link is closed within the call.
        while self._receiving is not None:
            data = await self._socket.recv()
            try:
                on_message(self._decoder.decode(data))
            # One message that cannot be taken is a fault of ours; the others' streams go on.
            except Exception:  # noqa: BLE001
                _log.exception("a message of the engine could not be taken")


@final
class ZmqControl:
    """The supervisor's end: it only sends."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        _set_options(self._socket)
        self._socket.setsockopt(zmq.IDENTITY, b"supervisor")
        self._socket.connect(address)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, message: ToEngine) -> None:
        """Sends a message; does not wait."""
        self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)

    def close(self) -> None:
        """Ends the connection; idempotent."""
        self._socket.close()
        self._context.term()


def _set_options(socket: zmq.Socket[bytes] | zmq.asyncio.Socket) -> None:
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)
