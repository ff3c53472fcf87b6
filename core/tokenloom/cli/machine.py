"""Facts about this machine and its libraries, as plain data."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

__all__ = ["LIBRARIES", "Gpu", "Machine", "examine_machine", "library_versions"]

LIBRARIES: tuple[str, ...] = (
    "tokenloom",
    "torch",
    "triton",
    "hydra-core",
    "pydantic",
    "numpy",
    "safetensors",
    "tokenizers",
    "huggingface_hub",
    "transformers",
)
"""Distributions whose versions matter when a result is compared; transformers is optional."""

_TELLING_FLAGS = (
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_vnni",
    "avx_vnni",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "asimddp",
    "bf16",
    "i8mm",
    "sve",
)
"""CPU flags that decide which kernels are fast."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU."""

    name: str
    memory_bytes: int
    compute_capability: str


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that this process sees.

    Attributes:
        num_cores: physical cores; num_usable_cpus: logical CPUs that this process may use.
        available_bytes: memory that could be taken now.
        cpu_flags: the telling ones only; empty where the system does not say.
    """

    system: str
    python: str
    cpu: str
    num_cores: int
    num_usable_cpus: int
    memory_bytes: int
    available_bytes: int
    cpu_flags: tuple[str, ...]
    gpus: tuple[Gpu, ...]


def examine_machine() -> Machine:
    """Looks at CPU, memory and GPUs. Imports torch."""
    memory = psutil.virtual_memory()
    cpuinfo = _cpuinfo()
    flags = set(cpuinfo.get("flags", cpuinfo.get("Features", "")).split())
    return Machine(
        system=platform.platform(),
        python=platform.python_version(),
        cpu=cpuinfo.get("model name") or platform.processor() or platform.machine(),
        num_cores=psutil.cpu_count(logical=False) or 0,
        num_usable_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        memory_bytes=memory.total,
        available_bytes=memory.available,
        cpu_flags=tuple(flag for flag in _TELLING_FLAGS if flag in flags),
        gpus=_gpus(),
    )


def library_versions() -> Mapping[str, str | None]:
    """Installed version of each of `LIBRARIES`; None where it is missing."""
    versions: dict[str, str | None] = {}
    for name in LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def _cpuinfo() -> dict[str, str]:
    """The first processor's entries of /proc/cpuinfo; empty where there is none."""
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return {}
    first = path.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _gpus() -> tuple[Gpu, ...]:
    import torch  # A second of import time that only this function needs.

    if not torch.cuda.is_available():
        return ()
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(Gpu(properties.name, properties.total_memory, f"{properties.major}.{properties.minor}"))
    return tuple(found)
