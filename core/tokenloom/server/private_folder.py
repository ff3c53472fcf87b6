"""The folder of one running server, which only its user may enter: sockets and what its processes share."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenloom.errors import ConfigError

__all__ = ["private_folder"]

_PREFIX = "tokenloom-serve-"
_LOCK = "lock"
_LONGEST_PARENT = 70
"""A socket's path has about a hundred characters at most."""
_YOUNG_S = 60.0
"""A folder of this age may belong to a server that is just starting."""


@contextmanager
def private_folder() -> Iterator[Path]:
    """Makes the folder, and removes it at the end; also those that killed servers have left.

    Raises:
        ConfigError: the place for temporary files has too long a path.
    """
    parent = Path(tempfile.gettempdir())
    if len(str(parent)) > _LONGEST_PARENT:
        raise ConfigError(f"the folder for temporary files, {parent}, has too long a path for sockets; set TMPDIR")
    _remove_left_over(parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        # Held as long as this process lives, whatever ends it, and seen from other containers, too.
        with (folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left_over(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            state = folder.stat()
            if state.st_uid != os.getuid() or time.time() - state.st_mtime < _YOUNG_S:
                continue
            with (folder / _LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            # It is in use, or somebody else is removing it.
            continue
