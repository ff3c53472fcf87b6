"""How messages travel between an engine and its front ends: the two ends of a link, whatever carries it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from tokenloom.engine_process.messages import FromEngine, ToEngine

__all__ = ["EngineLink", "FrontEndLink"]


class EngineLink(ABC):
    """The engine's end. Used from one thread."""

    @abstractmethod
    def receive(self, timeout_s: float) -> list[tuple[str, ToEngine]]:
        """Takes all messages that have arrived, each with the name of the front end that sent it.

        Those of one sender come in order; those of several in any.

        Args:
            timeout_s: how long to wait for the first one; 0 does not wait.
        """

    @abstractmethod
    def send(self, front_end: str, message: FromEngine) -> None:
        """Sends a message; never waits. What is meant for a front end that is gone is dropped."""

    @abstractmethod
    def close(self) -> None:
        """Ends the link once what was sent has left, as far as that takes no time worth waiting for; idempotent."""


class FrontEndLink(ABC):
    """A front end's end, used in one event loop. One link leads to one generation of the engine."""

    @abstractmethod
    def start(self, on_message: Callable[[FromEngine], None]) -> None:
        """Connects; from then on every message from the engine is handed over in the event loop, in order."""

    @abstractmethod
    def send(self, message: ToEngine) -> None:
        """Sends a message; does not wait."""

    @abstractmethod
    def close(self) -> None:
        """Ends the link once what was sent has left; nothing more is handed over. Idempotent."""
