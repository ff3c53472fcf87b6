"""The most memory that a stretch of work needed at a time, beyond what was held before it."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path
from typing import final

import torch

__all__ = ["PeakMemory"]

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_RESET_PEAK = "5"
"""What makes Linux forget the largest resident size so far."""


@final
class PeakMemory:
    """Measures from its making on: of a GPU what PyTorch allocates, else the process's resident memory::

        peak = PeakMemory(torch.device("cpu"))
        work()
        peak.read_bytes()

    Resident memory has everything in it: what other threads do, and scratch that no tensor owns. One at a time: the
    highest mark is the process's.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        gc.collect()
        self._before = self._begin()

    def read_bytes(self) -> int | None:
        """The peak so far; None where the system does not tell."""
        if self._before is None:
            return None
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            return torch.cuda.max_memory_allocated(self._device) - self._before
        return _status_bytes("VmHWM") - self._before

    def _begin(self) -> int | None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return torch.cuda.memory_allocated(self._device)
        libc = ctypes.CDLL(None)
        if not _CLEAR.exists() or not hasattr(libc, "malloc_trim"):
            return None
        libc.malloc_trim(0)  # what was freed before is no longer resident
        try:
            _CLEAR.write_text(_RESET_PEAK, encoding="ascii")
        except OSError:  # a container may forbid it
            return None
        return _status_bytes("VmRSS")


def _status_bytes(field: str) -> int:
    lines = _STATUS.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
