"""The user's C++ compiler: how it is found, what it must bring along, and the flags of each level of instructions."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import final

import torch

from tokenloom.errors import NativeBuildError

__all__ = ["Toolchain", "find_toolchain", "isa_flags", "why_not_buildable"]

_COMPILERS = ("g++", "c++", "clang++")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = ("f", "bw", "dq", "vl", "vnni", "bf16")


@final
@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler that was found.

    Attributes:
        compiler: its path.
        version: what it says of itself, for reports and for the cache's key.
    """

    compiler: str
    version: str

    def compile_flags(self, module_name: str) -> list[str]:
        """Flags of every file: language, ABI, and the headers of torch and Python."""
        root = Path(torch.__file__).parent / "include"
        headers = (root, root / "torch" / "csrc" / "api" / "include", Path(sysconfig.get_path("include")))
        return [
            *("-std=c++20", "-O3", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math"),
            f"-DTORCH_EXTENSION_NAME={module_name}",
            "-DTORCH_API_INCLUDE_EXTENSION_H",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            *(f"-isystem{folder}" for folder in headers),
            *_added_flags(),
        ]

    def link_flags(self) -> list[str]:
        """Libraries of torch. Its libgomp is in memory by the time the extension loads, and serves both."""
        libraries = Path(torch.__file__).parent / "lib"
        own = ["-ltorch", "-ltorch_cpu", "-ltorch_python", "-lc10"]
        return ["-shared", "-fopenmp", f"-L{libraries}", *own, *_added_flags()]


def isa_flags() -> Mapping[str, tuple[str, ...]]:
    """The compiler flags of each level of instructions that this kind of machine may have, as `isa.h` names them.

    All are built, whatever this very processor has: machines of one cluster may share a cache.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return {"portable": ()}
    wide = tuple(f"-mavx512{part}" for part in _AVX512)
    return {"portable": (), "avx2": _AVX2, "avx512": (*_AVX2, *wide, "-mprefer-vector-width=512")}


def find_toolchain() -> Toolchain:
    """The compiler named by $CXX, else the first of g++, c++ and clang++.

    Raises:
        NativeBuildError: there is none, it does not run, or Python's headers are missing. The message does not yet say
            what to use instead.
    """
    if not sys.platform.startswith("linux"):
        raise NativeBuildError(f"native code is built on Linux only, and this is {sys.platform}")
    named = os.environ.get("CXX")
    names = (named,) if named else _COMPILERS
    compiler = next((path for path in map(shutil.which, names) if path is not None), None)
    if compiler is None:
        where = f"CXX={named} is no program" if named else f"none of {', '.join(_COMPILERS)} is on the PATH"
        raise NativeBuildError(
            f"there is no C++ compiler: {where}. Install GCC 11 or newer (Debian and Ubuntu: apt install g++; Fedora: "
            "dnf install gcc-c++), or set CXX"
        )
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        raise NativeBuildError(
            f"the headers of Python {platform.python_version()} are not in {sysconfig.get_path('include')}. Install "
            "them (Debian and Ubuntu: apt install python3-dev; Fedora: dnf install python3-devel)"
        )
    return Toolchain(compiler, _version(compiler))


def why_not_buildable() -> str | None:
    """Why no extension can be built here, or None: what an `auto` setting asks before it chooses native code."""
    try:
        find_toolchain()
    except NativeBuildError as error:
        return str(error)
    return None


def _added_flags() -> list[str]:
    """What TOKENLOOM_CXXFLAGS adds, e.g. a sanitizer; part of the cache's key as all flags are."""
    return shlex.split(os.environ.get("TOKENLOOM_CXXFLAGS", ""))


@cache
def _version(compiler: str) -> str:
    """Asked once: a start of the engine looks for the compiler several times."""
    try:
        answer = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise NativeBuildError(f"the C++ compiler {compiler} does not run: {error}. Set CXX to another one") from error
    return answer.stdout.strip()
