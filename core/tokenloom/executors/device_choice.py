"""What `auto` means on this machine: device, dtype and threads. Every choice is visible in the resolved plan."""

from __future__ import annotations

import psutil
import torch

from tokenloom.engine_config import ModelSettings
from tokenloom.errors import ConfigError, OutOfMemoryError
from tokenloom.model_config import ModelConfig

__all__ = ["available_bytes", "choose_device", "choose_dtype", "choose_max_model_len", "choose_num_threads"]


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


def choose_num_threads(num_threads: int | None) -> int:
    """The number asked for, else the physical cores among the CPUs that this process may use."""
    if num_threads is not None:
        return num_threads
    usable = len(psutil.Process().cpu_affinity() or [0]) if psutil.LINUX else psutil.cpu_count() or 1
    logical, physical = psutil.cpu_count() or 1, psutil.cpu_count(logical=False) or 1
    return max(1, usable * physical // logical)


def available_bytes(device: torch.device) -> int:
    """Free memory of the device, bytes. Raises OutOfMemoryError when it cannot be told."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available = int(psutil.virtual_memory().available)
    if available <= 0:
        raise OutOfMemoryError("this machine reports no available memory; set cache.num_blocks")
    return available
