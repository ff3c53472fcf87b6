"""Memory for packed weights in pages of 2 MiB, where Linux gives such.

Every step reads all weights from end to end. With pages of 4 KiB the processor looks up addresses for a good part of
that time: large ones took a sixth to a quarter off the linear layers of one to four rows.
"""

from __future__ import annotations

import ctypes
import sys
from typing import final

import torch

__all__ = ["WeightMemory"]

_HUGE_PAGE = 2 << 20
_CHUNK_BYTES = 64 << 20
_MADV_HUGEPAGE = 14
_ALIGNMENT = 64


@final
class WeightMemory:
    """Hands out parts of large chunks, one after another. A chunk is freed with the last tensor that lies in it."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._used = 0

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialized, contiguous tensor on the CPU."""
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        if num_bytes > self._chunk.nbytes - self._used:
            self._chunk, self._used = _aligned_chunk(max(num_bytes, _CHUNK_BYTES)), 0
        part = self._chunk[self._used : self._used + num_bytes]
        self._used += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        return part.view(dtype).view(shape)


def _aligned_chunk(num_bytes: int) -> torch.Tensor:
    """Memory that begins at a huge page, and is to be backed by such. Pages that are never touched take none."""
    size = -(-num_bytes // _HUGE_PAGE) * _HUGE_PAGE
    around = torch.empty(size + _HUGE_PAGE, dtype=torch.uint8)
    start = -around.data_ptr() % _HUGE_PAGE
    chunk = around[start : start + size]
    if sys.platform.startswith("linux"):
        # Advice only: a kernel that has no such pages refuses it, and the memory is as good as any.
        ctypes.CDLL(None).madvise(ctypes.c_void_p(chunk.data_ptr()), ctypes.c_size_t(size), _MADV_HUGEPAGE)
    return chunk
