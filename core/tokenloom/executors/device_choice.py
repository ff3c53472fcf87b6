"""What `auto` means on this machine: device, dtype and threads. Every choice is visible in the resolved plan."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import torch

from tokenloom.capability_check import can_import
from tokenloom.engine_config import EngineSettings, ModelSettings
from tokenloom.errors import CapabilityError, ConfigError
from tokenloom.model_config import ModelConfig
from tokenloom.ops.native import why_not_buildable
from tokenloom.ops.table import OpsName

__all__ = [
    "available_bytes",
    "choose_device",
    "choose_dtype",
    "choose_max_model_len",
    "choose_num_threads",
    "choose_ops",
    "describe_threads",
]

_CGROUP = Path("/sys/fs/cgroup")


def choose_device(settings: ModelSettings) -> torch.device:
    """auto takes the first CUDA device if there is one. Raises ConfigError when cuda is asked for and absent."""
    has_cuda = torch.cuda.is_available()
    if settings.device == "cuda" and not has_cuda:
        raise ConfigError("model.device=cuda, but torch finds no CUDA device; try model.device=cpu")
    return torch.device("cuda", 0) if settings.device != "cpu" and has_cuda else torch.device("cpu")


def choose_dtype(settings: ModelSettings, model: ModelConfig, device: torch.device) -> torch.dtype:
    """auto keeps the checkpoint's dtype; float16 becomes bfloat16 on a CPU, which has no fast float16 product."""
    name: str = settings.dtype
    if name == "auto":
        name = "bfloat16" if device.type == "cpu" and model.dtype == "float16" else model.dtype
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def choose_max_model_len(settings: ModelSettings, model: ModelConfig) -> int:
    """The model's own limit unless a lower one is set. Raises ConfigError for a higher one."""
    if settings.max_model_len is None:
        return model.max_position_embeddings
    if settings.max_model_len > model.max_position_embeddings:
        raise ConfigError(
            f"model.max_model_len={settings.max_model_len} exceeds the model's own limit of "
            f"{model.max_position_embeddings} positions; choose at most that"
        )
    return settings.max_model_len


def choose_ops(settings: EngineSettings, device: torch.device, dtype: torch.dtype) -> OpsName:
    """auto is triton on CUDA, and native for bfloat16 on a CPU with a compiler; else torch.

    Raises CapabilityError where what is asked for cannot be.
    """
    can_be_native = device.type == "cpu" and dtype == torch.bfloat16
    wanted = settings.operations
    if wanted == "auto":
        if device.type == "cuda" and can_import("triton"):
            return "triton"
        return "native" if can_be_native and why_not_buildable() is None else "torch"
    found = f"{str(dtype).removeprefix('torch.')} on {device.type}"
    reasons: list[str] = []
    if wanted == "native" and not can_be_native:
        reasons.append(
            f"engine.operations=native computes in bfloat16 on a CPU, got {found}; try model.dtype=bfloat16 "
            "model.device=cpu, or engine.operations=torch"
        )
    if wanted == "triton" and (obstacle := _why_not_triton(device, dtype)):
        reasons.append(f"engine.operations=triton {obstacle}")
    if reasons:
        raise CapabilityError(reasons)
    return wanted


def _why_not_triton(device: torch.device, dtype: torch.dtype) -> str | None:
    """What keeps Triton's operations from a device, and what to try; None if nothing does."""
    if not can_import("triton"):
        return "needs triton, which is not installed; try engine.operations=auto"
    if device.type == "cuda":
        return None
    # Triton is there on Linux only.
    from tokenloom.ops.triton_layers import is_interpreted

    if not is_interpreted():
        return f"runs on cuda, got {device.type}; try engine.operations=auto"
    if dtype == torch.bfloat16:
        return "cannot round to bfloat16 in Triton's interpreter, got bfloat16; try model.dtype=float32"
    return None


def choose_num_threads(num_threads: int | None) -> int:
    """The number asked for, else OMP_NUM_THREADS, else the physical cores among the CPUs that this process may use."""
    most = psutil.cpu_count() or 1
    if num_threads is not None:
        if num_threads > most:
            raise ConfigError(f"engine.num_threads={num_threads} exceeds the {most} CPUs of this machine")
        return num_threads
    if os.environ.get("OMP_NUM_THREADS", "").isdecimal():
        return min(most, max(1, int(os.environ["OMP_NUM_THREADS"])))
    usable = len(psutil.Process().cpu_affinity() or [0]) if psutil.LINUX else psutil.cpu_count() or 1
    return max(1, usable * (psutil.cpu_count(logical=False) or 1) // most)


def describe_threads() -> str:
    """How many threads torch computes with here and, on Linux, where the process may run: "2 on CPUs 0, 1"."""
    places = f" on CPUs {', '.join(map(str, psutil.Process().cpu_affinity() or []))}" if psutil.LINUX else ""
    return f"{torch.get_num_threads()}{places}"


def available_bytes(device: torch.device) -> int:
    """Free memory of the device, bytes; on the CPU also within the limit of the container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available = int(psutil.virtual_memory().available)
    limit, used = _CGROUP / "memory.max", _CGROUP / "memory.current"
    if limit.exists() and used.exists() and (text := limit.read_text().strip()).isdecimal():
        available = min(available, int(text) - int(used.read_text()))
    return max(0, available)
