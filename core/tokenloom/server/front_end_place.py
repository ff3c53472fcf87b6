"""What one front end shares with the others of its server, and what it knows of the server's state."""

from __future__ import annotations

import asyncio
from collections.abc import MutableSequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["FrontEndPlace"]


@dataclass(slots=True)
class FrontEndPlace:
    """A front end's place in a server.

    Attributes:
        index: of this one, from 0.
        num_front_ends: front ends of this server.
        reserved: memory that all of them share, a number for each; see `Places`.
        folder: for files that they share, private to this server; None where there is but one process.
        is_draining: the server is ending; no new request should begin.
        num_engine_restarts: engines that have died so far.
        has_drained: the time to drain is over, too.
        reads: deadlines of the bodies that are being read.
    """

    index: int
    num_front_ends: int
    reserved: MutableSequence[int]
    folder: Path | None = None
    is_draining: bool = False
    num_engine_restarts: int = 0
    has_drained: bool = False
    reads: set[asyncio.Timeout] = field(default_factory=set)

    def end_drain(self) -> None:
        """Nobody waits for the rest of a body any more. Called in the event loop that reads them."""
        self.has_drained = True
        for read in self.reads:
            if not read.expired():
                read.reschedule(0.0)
