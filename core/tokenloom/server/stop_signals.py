"""SIGTERM and Ctrl-C as something that an event loop can wait for."""

from __future__ import annotations

import signal
import socket
from types import FrameType
from typing import Any, final

__all__ = ["StopSignals"]


@final
class StopSignals:
    """Counts the signals that ask a process to end, within a `with` block of the main thread.

    Attributes:
        numbers: the signals that came, in order.
    """

    HANDLED = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)
        self._wakeup_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._note) for number in self.HANDLED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_fd)
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        """Readable once a signal has come."""
        return self._reader.fileno()

    def drain(self) -> None:
        """Makes it unreadable until the next signal."""
        try:
            while self._reader.recv(64):
                pass
        except BlockingIOError:
            return

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.numbers.append(number)
