"""Memory for packed weights, in large chunks that huge pages can back: every step reads all weights from end to end."""

from __future__ import annotations

from typing import final

import torch

from tokenloom.ops.huge_pages import zeroed_memory

__all__ = ["WeightMemory"]

_CHUNK_BYTES = 64 << 20
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
            self._chunk, self._used = zeroed_memory(max(num_bytes, _CHUNK_BYTES)), 0
        part = self._chunk[self._used : self._used + num_bytes]
        self._used += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        return part.view(dtype).view(shape)
