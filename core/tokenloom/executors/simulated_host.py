"""Host memory of a simulated device: which KV lies there, how long it takes to move, and what is lost on the way."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import final

from tokenloom.batch import BlockTransfers
from tokenloom.interfaces.executor import KVGroupSpec

__all__ = ["SimulatedHostMemory"]


@final
class SimulatedHostMemory:
    """Holds no KV, but knows what there would be; whatever the core asks for and is not there is our own bug."""

    def __init__(self, groups: Sequence[KVGroupSpec], bytes_per_s: float, loss: float) -> None:
        """`loss`: share of the exports that never arrive."""
        self._page_bytes = [group.page_bytes for group in groups]
        self._bytes_per_s = bytes_per_s
        self._loss = loss
        self._num_exports = 0
        self._stored: dict[str, tuple[int, ...]] = {}
        self._lost: set[str] = set()

    def move(self, transfers: BlockTransfers) -> tuple[float, tuple[str, ...]]:
        """Carries out a step's transfers; returns the seconds that they take, and whose exports were lost."""
        num_bytes, lost = 0, list[str]()
        for request_id in transfers.dropped:
            del self._stored[request_id]
            self._lost.discard(request_id)
        for export in transfers.exports:
            assert export.request_id not in self._stored, f"{export.request_id} is in host memory already"
            counts = tuple(map(len, export.block_ids))
            num_bytes += self._bytes_of(counts)
            self._num_exports += 1
            self._stored[export.request_id] = counts
            if self._is_lost(export.request_id):
                lost.append(export.request_id)
        # The core drops what it was told is lost, as anything else that it does not need.
        self._lost.update(lost)
        for restore in transfers.imports:
            assert restore.request_id not in self._lost, f"{restore.request_id} comes back, but was lost"
            stored = self._stored.pop(restore.request_id)
            for sources, block_ids, count in zip(restore.sources, restore.block_ids, stored, strict=True):
                assert len(sources) == len(block_ids), (
                    f"{restore.request_id}: {len(sources)} to {len(block_ids)} blocks"
                )
                assert all(0 <= source < count for source in sources), f"{restore.request_id}: {sources} of {count}"
            num_bytes += self._bytes_of(tuple(map(len, restore.block_ids)))
        return num_bytes / self._bytes_per_s, tuple(lost)

    def _bytes_of(self, num_blocks: Sequence[int]) -> int:
        return sum(size * count for size, count in zip(self._page_bytes, num_blocks, strict=True))

    def _is_lost(self, request_id: str) -> bool:
        """The same in every run: a hash of the request and the number of the export."""
        draw = zlib.crc32(f"{request_id}/{self._num_exports}".encode()) / 2**32
        return draw < self._loss
