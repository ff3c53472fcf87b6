"""How the processes of a server log: one line a message to stderr, with its time."""

from __future__ import annotations

import logging

__all__ = ["log_to_stderr"]

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def log_to_stderr(level: str) -> None:
    """Begins to log, or changes the level. `level` is a name of module logging, in any case."""
    logging.basicConfig(format=_FORMAT)
    logging.getLogger().setLevel(level.upper())
