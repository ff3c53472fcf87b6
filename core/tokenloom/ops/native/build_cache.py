"""Built libraries on disk: one folder each, complete or absent, checked before use, made by one process at a time."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

__all__ = ["cached_library"]

_MOST_ENTRIES = 8
"""Libraries that are kept of one extension, those last used: of several checkouts, compilers and versions of torch."""

_IN_USE_S = 3600.0
"""A library that was found less than this ago is never removed: whoever found it may not have loaded it yet."""


def cached_library(
    folder: Path, entry: str, file: str, build: Callable[[Path], Path], report: Callable[[str], None]
) -> Path:
    """The path of a library in the cache, built first if it is not there, damaged, or of doubtful origin.

    A build removes libraries of the same extension that were long not used. A process that has loaded one keeps it.

    Args:
        folder: the cache; need not exist.
        entry: name of the library's own folder, "EXTENSION-DIGEST": the digest is of all that it is made from.
        file: the library's name in there.
        build: makes the library below the empty folder that it is given, and returns its path.
        report: takes words for the user when there is something to wait for.

    Raises:
        OSError: the cache cannot be written.
    """
    library = folder / entry / file
    if _is_found(library):
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(_lock_of(library.parent), report):
        if _is_intact(library):  # another process has built it meanwhile
            return library
        for left_over in folder.glob(f".{entry}-*"):  # of processes that were killed: whoever builds holds the lock
            shutil.rmtree(left_over, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f".{entry}-", dir=folder) as work:
            _publish(build(_made(Path(work) / "build")), library, Path(work))
        _remove_unused(folder, entry)
    return library


def _is_found(library: Path) -> bool:
    """Whether the library is intact; its use is then on record, under a lock that keeps it from being removed, if one
    is there."""
    try:
        with _lock_of(library.parent).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return _is_intact(library) and _note_use(library.parent)
    except BlockingIOError:  # being built, or removed
        return False
    except OSError:  # no lock, or none that this user may open: a cache that was copied, or that others keep
        return _is_intact(library) and _note_use(library.parent)


def _note_use(entry: Path) -> bool:
    with suppress(OSError):  # of another user, or on a disk that takes no writes
        os.utime(entry)
    return True


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


def _remove_unused(folder: Path, entry: str) -> None:
    """Keeps `entry` and the others of its extension that were last used; what cannot be removed stays."""
    extension = entry.rpartition("-")[0]
    others: list[tuple[float, Path]] = []
    for path in folder.glob(f"{extension}-*"):
        if path.name.rpartition("-")[0] == extension and path.name != entry and path.is_dir():
            with suppress(FileNotFoundError):  # removed by another process
                others.append((path.stat().st_mtime, path))
    for _, old in sorted(others, reverse=True)[_MOST_ENTRIES - 1 :]:
        with suppress(OSError):
            _remove(old)


def _remove(entry: Path) -> None:
    """Removes a library and its lock, unless it was used a short time ago.

    Raises:
        OSError: another process builds, finds or removes it at this moment, or it belongs to another user.
    """
    away = entry.with_name(f".{entry.name}-removed")
    with _lock_of(entry).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.time() - entry.stat().st_mtime < _IN_USE_S:
            return
        shutil.rmtree(away, ignore_errors=True)  # of a process that was killed here
        os.replace(entry, away)
        _lock_of(entry).unlink()
    shutil.rmtree(away)


def _lock_of(entry: Path) -> Path:
    return entry.with_name(f"{entry.name}.lock")


@contextmanager
def _lock(path: Path, report: Callable[[str], None]) -> Iterator[None]:
    while True:
        with path.open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report("waiting for another process that is building it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_still(lock, path):
                yield
                return


def _is_still(lock: IO[str], path: Path) -> bool:
    """Whether nobody has removed the lock's file since it was opened: others would lock another file."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except FileNotFoundError:
        return False
