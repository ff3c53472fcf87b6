"""Times and rates on a device, for `gpu_check.py`; on a CPU the same code runs, to be tested."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

__all__ = ["Budget", "copy_bytes_per_s", "matmul_flop_per_s", "timed"]

_WARM_UP = 3
_FLUSH_BYTES = 256 << 20
"""More than any card's last cache holds."""


class Budget:
    """How long the whole check may take, from when this is made."""

    def __init__(self, seconds: float) -> None:
        self._start, self._seconds = time.monotonic(), seconds
        self._end = self._start + seconds

    def part(self, share: float) -> Budget:
        """The first `share` of it, which began when the whole did."""
        first = Budget(share * self._seconds)
        first._start, first._end = self._start, self._start + share * self._seconds
        return first

    @property
    def left_s(self) -> float:
        """Seconds; negative when it is spent."""
        return self._end - time.monotonic()


def timed(call: Callable[[], object], device: torch.device, repeats: int = 10, *, cold: bool = False) -> float:
    """Seconds that a call takes: the median of `repeats`, after warming up.

    Args:
        call: starts work on the current stream.
        device: where.
        repeats: measured calls.
        cold: empty the device's caches before each call.
    """
    for _ in range(_WARM_UP if device.type == "cuda" else 1):
        call()
    if device.type != "cuda":
        return median(_wall_time(call) for _ in range(repeats))
    flush = torch.empty(_FLUSH_BYTES if cold else 0, dtype=torch.uint8, device=device)
    marks: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(2 * repeats)]  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    for start, end in zip(marks[::2], marks[1::2]):
        flush.zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize(device)
    return median(float(start.elapsed_time(end)) for start, end in zip(marks[::2], marks[1::2])) / 1e3


def copy_bytes_per_s(device: torch.device, num_bytes: int) -> float:
    """Bytes read and written each second when a tensor of `num_bytes` is copied."""
    source = torch.randint(0, 255, (num_bytes,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / timed(lambda: target.copy_(source), device)


def matmul_flop_per_s(device: torch.device, size: int) -> float:
    """Operations each second of a square product of random bf16 matrices."""
    a, b = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    return 2 * size**3 / timed(lambda: a @ b, device)


def _wall_time(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
