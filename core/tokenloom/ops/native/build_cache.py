"""Built libraries on disk: one folder each, complete or absent, checked before use, made by one process at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["cached_library"]


def cached_library(
    folder: Path, entry: str, file: str, build: Callable[[Path], Path], report: Callable[[str], None]
) -> Path:
    """The path of a library in the cache, built first if it is not there, damaged, or of doubtful origin.

    Args:
        folder: the cache; need not exist.
        entry: name of the library's own folder; holds the digest of all that it is made from.
        file: the library's name in there.
        build: makes the library below the empty folder that it is given, and returns its path.
        report: takes words for the user when there is something to wait for.

    Raises:
        OSError: the cache cannot be written.
    """
    library = folder / entry / file
    if _is_intact(library):
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder / f"{entry}.lock", report):
        if _is_intact(library):  # another process has built it meanwhile
            return library
        for left_over in folder.glob(f".{entry}-*"):  # of processes that were killed: whoever builds holds the lock
            shutil.rmtree(left_over, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f".{entry}-", dir=folder) as work:
            _publish(build(_made(Path(work) / "build")), library, Path(work))
    return library


def _publish(built: Path, library: Path, work: Path) -> None:
    """Moves a built library to its place, with its digest beside it, in one rename."""
    staged = _made(work / "entry")
    os.replace(built, staged / library.name)
    _record_of(staged / library.name).write_text(_digest(staged / library.name), encoding="ascii")
    for path in (staged, *staged.iterdir()):
        path.chmod(0o755)
    if os.path.lexists(library.parent):
        os.replace(library.parent, work / "damaged")
    os.replace(staged, library.parent)


def _is_intact(library: Path) -> bool:
    """Whether the library is whole, and nobody but this user or root could have written it."""
    try:
        for path in (library.parent, library):
            state = path.stat()
            if state.st_uid not in (os.geteuid(), 0) or state.st_mode & 0o022:
                return False
        return _record_of(library).read_text(encoding="ascii") == _digest(library)
    except (OSError, UnicodeDecodeError):
        return False


def _record_of(library: Path) -> Path:
    return library.with_name(f"{library.name}.sha256")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@contextmanager
def _lock(path: Path, report: Callable[[str], None]) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process that is building it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
