"""What a front end holds of an engine, wherever that runs: submit, listen, abort, ask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any

from tokenloom.engine_output import EngineOutput
from tokenloom.engine_process.messages import EngineInfo, Submit

__all__ = ["EngineClient", "EngineStream"]


class EngineStream(ABC):
    """The outputs of one submission, all its choices interleaved, as they land. Used from one task."""

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[list[EngineOutput]]:
        """Yields what has landed since the last time (at least one output), until every choice has ended.

        A reader that is slower than the engine gets several steps at once, so that what waits for it is bounded by the
        request's own tokens.

        Raises:
            RequestError: the engine refused the submission: it can never run as asked.
            OverloadedError: the engine refused it for now.
            EngineDeadError: the engine died; nothing more comes.
        """

    @abstractmethod
    def truncate(self, request_id: str, num_output_tokens: int, stop_reason: str) -> None:
        """Ends one choice at a stop string; nothing more comes of it. Harmless once it has ended."""

    @abstractmethod
    def close(self) -> None:
        """Aborts every choice that has not ended; idempotent, does not wait."""


class EngineClient(ABC):
    """One front end's connection to an engine. Lives in one event loop."""

    @property
    @abstractmethod
    def info(self) -> EngineInfo:
        """What the engine said of itself. Raises EngineDeadError before it was ready for the first time."""

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether submissions can be sent now."""

    @abstractmethod
    def submit(self, submission: Submit) -> EngineStream:
        """Sends a submission; does not wait. Raises EngineDeadError when the engine is not there."""

    @abstractmethod
    async def call(self, operation: str, **arguments: Any) -> Any:
        """Asks the engine something, see `EngineLoop`; may take as long as a step.

        Raises:
            EngineDeadError: it is not there, or dies meanwhile.
            TokenloomError: the operation failed, with the engine's message.
        """

    @abstractmethod
    async def close(self) -> None:
        """Aborts this front end's requests and ends the connection; idempotent."""
