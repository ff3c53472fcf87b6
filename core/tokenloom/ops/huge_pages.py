"""Memory of the CPU in pages of 2 MiB, where Linux gives such.

With pages of 4 KiB a processor looks up addresses for a good part of the time that it takes to read weights, and the
system gives a KV cache six pages for each token that is the first in its slot: large pages took a sixth to a quarter
off the linear layers of one to four rows, and a tenth off steps that write to new blocks.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np
import torch

__all__ = ["zeroed_memory"]

_HUGE_PAGE = 2 << 20
_CACHE_LINE = 64
"""Bytes; also the widest vector register of a CPU."""
_MADV_HUGEPAGE = 14


def zeroed_memory(num_bytes: int) -> torch.Tensor:
    """uint8 [num_bytes], zero; begins at a cache line, and at a huge page if it has the size of some.

    Its pages come from the system when they are first written, so memory that is never used takes neither time nor
    room (`torch.zeros` touches every page).
    """
    is_large = num_bytes >= 4 * _HUGE_PAGE
    alignment = _HUGE_PAGE if is_large else _CACHE_LINE
    around = torch.from_numpy(np.zeros(num_bytes + 2 * alignment, np.uint8))
    start = -around.data_ptr() % alignment
    memory = around[start : start + num_bytes]
    if is_large and sys.platform.startswith("linux"):
        # Advice only: a kernel that has no such pages refuses it, and the memory is as good as any.
        size = -(-num_bytes // _HUGE_PAGE) * _HUGE_PAGE
        ctypes.CDLL(None).madvise(ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(size), _MADV_HUGEPAGE)
    return memory
