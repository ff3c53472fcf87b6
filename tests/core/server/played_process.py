"""A child process that a test plays."""

from __future__ import annotations

import socket
from typing import final

__all__ = ["PlayedProcess"]


@final
class PlayedProcess:
    """Stands for what `start_child` returns."""

    def __init__(self) -> None:
        self.exitcode: int | None = None
        self.num_kills = 0
        self._ends = socket.socketpair()

    @property
    def sentinel(self) -> int:
        return self._ends[0].fileno()

    def end(self, exitcode: int) -> None:
        """Ends it."""
        self.exitcode = exitcode

    def kill(self) -> None:
        self.num_kills += 1
        self.exitcode = -9

    def join(self) -> None:
        pass

    def close(self) -> None:
        for end in self._ends:
            end.close()
