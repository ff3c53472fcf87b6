"""An identity for weight files that costs kilobytes to compute, and the record of a full digest made at download."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenloom.errors import ModelError

__all__ = ["DigestRecord", "file_sha256", "quick_digest"]

_NUM_SAMPLES = 16
_SAMPLE_BYTES = 4096
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class DigestRecord:
    """The SHA-256 of a file's content, kept beside it as `<name>.digest.json` since the file was made."""

    sha256: str
    num_bytes: int
    mtime_ns: int

    @staticmethod
    def path_for(file: Path) -> Path:
        return file.with_name(f"{file.name}.digest.json")

    @classmethod
    def read(cls, file: Path) -> DigestRecord | None:
        """The record beside `file`, or None if there is none. Raises ModelError if it is damaged."""
        record_path = cls.path_for(file)
        try:
            values = json.loads(record_path.read_text(encoding="utf-8"))
            return cls(str(values["sha256"]), int(values["num_bytes"]), int(values["mtime_ns"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"the digest record {record_path} is damaged ({error}); delete it") from error

    def write(self, record_path: Path) -> None:
        record_path.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    def matches(self, file: Path) -> bool:
        """Whether `file` is, by size and time, still the one that was recorded."""
        status = file.stat()
        return status.st_size == self.num_bytes and status.st_mtime_ns == self.mtime_ns


def file_sha256(path: Path) -> str:
    """The SHA-256 of the whole file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def quick_digest(files: Iterable[tuple[Path, bytes]]) -> str:
    """SHA-256 over name, size, time, header and sixteen evenly spread samples of each file.

    Samples make two fine-tunes of one model differ even where an archive gave all files the same time.

    Args:
        files: each weight file with its header bytes; the order does not matter.
    """
    digest = hashlib.sha256()
    for path, header in sorted(files):
        status = path.stat()
        for part in (path.name.encode(), b"%d %d" % (status.st_size, status.st_mtime_ns), header):
            digest.update(b"%d:" % len(part))
            digest.update(part)
        with path.open("rb", buffering=0) as file:
            for index in range(_NUM_SAMPLES):
                file.seek(max(0, status.st_size - _SAMPLE_BYTES) * index // (_NUM_SAMPLES - 1), os.SEEK_SET)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
