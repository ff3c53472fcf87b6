"""Compiles an extension on first use, and loads it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType
from typing import final

import torch

from tokenloom.errors import NativeBuildError
from tokenloom.loader.sources import CACHE_VARIABLE, own_cache_dir
from tokenloom.ops.native.build_cache import cached_library
from tokenloom.ops.native.toolchain import Toolchain, find_toolchain, isa_flags

__all__ = ["load_extension"]

_HERE = Path(__file__).parent
_INCLUDE = _HERE / "include"
_ISA_SOURCE = _HERE / "csrc" / "isa.cpp"
_HEADER_SUFFIXES = (".h", ".hpp", ".inc")
_MAX_SHOWN_LINES = 20

_loaded: dict[str, ModuleType] = {}
_loading = threading.Lock()


def load_extension(
    name: str,
    sources: Sequence[Path],
    *,
    kernels: Sequence[Path] = (),
    include_dirs: Sequence[Path] = (),
    instead: str,
) -> ModuleType:
    """Builds an extension unless the cache has it, and loads it; a second call returns the same module.

    Args:
        name: of the module; a Python identifier, unique among extensions.
        sources: files compiled once; one holds PYBIND11_MODULE(TORCH_EXTENSION_NAME, m).
        kernels: files compiled once per level of instructions; see `tokenloom/isa.h`.
        include_dirs: folders of headers; all headers in them are part of the cache's key.
        instead: what a user who cannot build it should choose, for error messages: "attention=torch_sdpa".

    Raises:
        NativeBuildError: there is no compiler, the code does not compile, or the cache cannot be written.
    """
    assert name.isidentifier(), f"{name!r} cannot be the name of a module"
    try:
        recipe = _Recipe(name, (_ISA_SOURCE, *sources), tuple(kernels), (_INCLUDE, *include_dirs), find_toolchain())
        key = recipe.key()
        with _loading:
            if key not in _loaded:
                _loaded[key] = _import(name, _library(recipe, key))
            return _loaded[key]
    except NativeBuildError as error:
        raise NativeBuildError(
            f"{name} is native code that is built on first use, and {error}; or use {instead}"
        ) from error


@final
@dataclass(frozen=True, slots=True)
class _Recipe:
    """All that an extension is made from."""

    name: str
    sources: tuple[Path, ...]
    kernels: tuple[Path, ...]
    include_dirs: tuple[Path, ...]
    toolchain: Toolchain

    def key(self) -> str:
        """A digest of all that the library depends on.

        Flags name no processor, and neither does this: the library holds code for each level of instructions.
        """
        headers = [path for folder in self.include_dirs for path in sorted(folder.rglob("*"))]
        files = [*self.sources, *self.kernels, *(path for path in headers if path.suffix in _HEADER_SUFFIXES)]
        parts = {
            "name": self.name,
            "files": [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files],
            "num_sources": len(self.sources),
            "torch": [torch.__version__, torch.version.git_version, str(Path(torch.__file__).parent)],
            "python": sysconfig.get_config_var("SOABI"),
            "compiler": self.toolchain.version,
            "flags": [self.toolchain.compile_flags(self.name), self.toolchain.link_flags(), dict(isa_flags())],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def build(self, folder: Path) -> Path:
        """Compiles all files, as many at once as there are CPUs, and links them."""
        common = [*self.toolchain.compile_flags(self.name), *(f"-I{path}" for path in self.include_dirs)]
        jobs = [(path, f"{number}.o", ["-DTL_ISA=portable"]) for number, path in enumerate(self.sources)]
        for level, flags in isa_flags().items():
            own = [f"-DTL_ISA={level}", *flags]
            jobs += [(path, f"{level}.{number}.o", own) for number, path in enumerate(self.kernels)]
        commands = [
            [self.toolchain.compiler, *common, *own, "-c", str(path), "-o", str(folder / target)]
            for path, target, own in jobs
        ]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(_run, commands))
        library = folder / _library_name(self.name)
        objects = [str(folder / target) for _, target, _ in jobs]
        _run([self.toolchain.compiler, *objects, *self.toolchain.link_flags(), "-o", str(library)])
        return library


def _library(recipe: _Recipe, key: str) -> Path:
    folder = own_cache_dir() / "native"
    compiler = recipe.toolchain.version.partition("\n")[0]

    def build(work: Path) -> Path:
        report(f"building it with {compiler}; this takes about half a minute, once, and is kept in {folder}")
        return recipe.build(work)

    report = _reporter(recipe.name)
    try:
        return cached_library(folder, f"{recipe.name}-{key[:20]}", _library_name(recipe.name), build, report)
    except OSError as error:
        raise NativeBuildError(
            f"it cannot be stored under {folder}: {error}. Set {CACHE_VARIABLE} to a folder that can be written"
        ) from error


def _reporter(name: str) -> Callable[[str], None]:
    def report(words: str) -> None:
        print(f"tokenloom: {name} is native code: {words}", file=sys.stderr, flush=True)

    return report


def _library_name(name: str) -> str:
    return f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"


def _import(name: str, library: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, library, loader=ExtensionFileLoader(name, str(library)))
    assert spec is not None, f"no import spec for {library}"
    assert spec.loader is not None, f"no loader for {library}"
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise NativeBuildError(
            f"the library that was built cannot be loaded: {error}. Delete {library.parent}"
        ) from error
    return module


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return
    lines = done.stderr.splitlines() or [f"exit code {done.returncode}"]
    faults = [line for line in lines if "error" in line] or lines
    shown = "\n".join(f"    {line}" for line in faults[:_MAX_SHOWN_LINES])
    raise NativeBuildError(
        f"the compiler {command[0]} fails (GCC 11 or newer is needed; set CXX to choose another one):\n{shown}\n"
    )
