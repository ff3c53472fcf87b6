"""Where a result came from: versions, machine, time. Stored in every result file."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

__all__ = ["client_provenance", "provenance"]

_PACKAGES = ("tokenloom", "torch", "triton", "numpy", "tokenizers", "hydra-core", "pydantic")


def provenance() -> dict[str, Any]:
    """Versions of what ran, the machine and the time (UTC). Holds no path and no host name."""
    # Imported here: what only talks to a server shares this module, and must not load torch.
    import torch

    found = client_provenance()
    found["machine"]["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {**found, "torch_threads": torch.get_num_threads()}


def client_provenance() -> dict[str, Any]:
    """The same without what only torch knows, for programs that run no model."""
    return {
        "time_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "machine": {
            "system": f"{platform.system()} {platform.release()}",
            "architecture": platform.machine(),
            "cpu": _cpu_name(),
            "cpus_usable": len(os.sched_getaffinity(0)) if psutil.LINUX else psutil.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
        },
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
