"""KV of preempted requests in host memory: what was moved there, how much room is left, what comes back.

Only blocks that the request can still see are moved, shared ones too, since the prefix index may lose those. When it
starts again, blocks that the index still has are pinned, and only the others are copied back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from tokenloom.batch import BlockExport, BlockImport, BlockTransfers
from tokenloom.interfaces.executor import KVGroupSpec
from tokenloom.kv.block_pool import NULL_BLOCK
from tokenloom.kv.prefix_match import PrefixMatch

__all__ = ["HostMemory"]


@dataclass(frozen=True, slots=True)
class _Swapped:
    """One request's KV in host memory: its frontier, and per group the index of the first block that was moved."""

    num_tokens: int
    first_blocks: tuple[int, ...]
    num_bytes: int


@final
class HostMemory:
    """Bookkeeping of the host memory that the executor fills and empties as plans say."""

    def __init__(
        self, groups: Sequence[KVGroupSpec], block_size: int, capacity_bytes: int, *, keeps_windows: bool
    ) -> None:
        """`keeps_windows` if blocks that left a window stay in their table."""
        self._groups = tuple(groups)
        self._block_size = block_size
        self._keeps_windows = keeps_windows
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._swapped: dict[str, _Swapped] = {}
        self.coming_back: dict[str, tuple[_Swapped, tuple[tuple[int, ...], ...]]] = {}
        """By request that starts again: what was moved here, and per group the table indices to bring back."""
        self._exports: list[BlockExport] = []
        self._imports: list[BlockImport] = []
        self._dropped: list[str] = []

    def num_bytes(self, num_tokens: int) -> int:
        """What a request with so many computed tokens would take."""
        first, end = self._first_blocks(num_tokens), self._num_blocks(num_tokens)
        return sum((end - start) * group.page_bytes for start, group in zip(first, self._groups, strict=True))

    def num_tokens(self, request_id: str) -> int:
        """Computed tokens of a request whose KV is here; 0 if it is not."""
        swapped = self._swapped.get(request_id)
        return 0 if swapped is None else swapped.num_tokens

    def export(self, request_id: str, num_tokens: int, tables: Sequence[Sequence[int]]) -> int:
        """Moves a request's blocks here, in the coming step; returns the bytes. The caller has checked the room."""
        first, end, num_bytes = self._first_blocks(num_tokens), self._num_blocks(num_tokens), self.num_bytes(num_tokens)
        assert request_id not in self._swapped, f"{request_id} is in host memory already"
        assert self.used_bytes + num_bytes <= self.capacity_bytes, f"{request_id}: no room for {num_bytes} bytes"
        moved = tuple(tuple(table[start:end]) for start, table in zip(first, tables, strict=True))
        assert not any(NULL_BLOCK in ids for ids in moved), f"{request_id} moves the null block: {moved}"
        self._exports.append(BlockExport(request_id, moved))
        self._swapped[request_id] = _Swapped(num_tokens, first, num_bytes)
        self.used_bytes += num_bytes
        return num_bytes

    def resume(self, request_id: str, find: Callable[[int, int], Sequence[int]]) -> PrefixMatch:
        """What a request finds when it starts again.

        Args:
            request_id: whose KV is here.
            find: (group, n) -> block ids in the index of the longest usable prefix of the first n full blocks.
        """
        swapped = self._swapped[request_id]
        end = self._num_blocks(swapped.num_tokens)
        tables: list[tuple[int, ...]] = []
        imports: list[tuple[int, ...]] = []
        for group, first in enumerate(swapped.first_blocks):
            found = find(group, max(0, swapped.num_tokens - self._groups[group].lookahead) // self._block_size)
            ids = [found[i] if first <= i < len(found) else NULL_BLOCK for i in range(end)]
            tables.append(tuple(ids))
            imports.append(tuple(i for i in range(first, end) if ids[i] == NULL_BLOCK))
        return PrefixMatch(swapped.num_tokens, tuple(tables), tuple(imports))

    def start(self, request_id: str, match: PrefixMatch) -> None:
        """Takes note that a request starts again, with its own KV or with a prefix that is longer."""
        swapped = self._swapped.get(request_id)
        if swapped is None:
            return
        if match.imports and not match.copies:
            self.coming_back[request_id] = self._forget(request_id), match.imports
        else:
            self.drop(request_id)

    def importing(self, request_id: str) -> tuple[tuple[int, ...], ...] | None:
        """Per group, the table indices of the blocks that a request still has to bring back, or None."""
        found = self.coming_back.get(request_id)
        return None if found is None else found[1]

    def restore(self, request_id: str, tables: Sequence[Sequence[int]]) -> None:
        """Has the executor fill a request's new blocks; they stand in its tables by now."""
        swapped, indices = self.coming_back.pop(request_id)
        sources, targets = [], []
        for first, chosen, table in zip(swapped.first_blocks, indices, tables, strict=True):
            sources.append(tuple(index - first for index in chosen))
            targets.append(tuple(table[index] for index in chosen))
        self._imports.append(BlockImport(request_id, tuple(sources), tuple(targets)))

    def drop(self, request_id: str) -> None:
        """Forgets a request's KV, if it is here."""
        if request_id in self._swapped:
            self._forget(request_id)
            self._dropped.append(request_id)

    def take_transfers(self) -> BlockTransfers:
        """What the executor has to do in the coming step."""
        transfers = BlockTransfers(tuple(self._exports), tuple(self._imports), tuple(self._dropped))
        self._exports, self._imports, self._dropped = [], [], []
        return transfers

    def moved_bytes(self, transfers: BlockTransfers) -> int:
        """Bytes that a step moved, either way."""
        moves = [*(move.block_ids for move in transfers.exports), *(move.block_ids for move in transfers.imports)]
        return sum(
            len(ids) * group.page_bytes for tables in moves for ids, group in zip(tables, self._groups, strict=True)
        )

    def check(self) -> None:
        """Recounts. Raises AssertionError."""
        expected = sum(swapped.num_bytes for swapped in self._swapped.values())
        assert self.used_bytes == expected, (
            f"{self.used_bytes} bytes in host memory, the requests' add up to {expected}"
        )
        assert self.used_bytes <= self.capacity_bytes, (
            f"{self.used_bytes} of {self.capacity_bytes} bytes in host memory"
        )
        assert not self.coming_back, f"{list(self.coming_back)} started, but were not restored"

    def _forget(self, request_id: str) -> _Swapped:
        swapped = self._swapped.pop(request_id)
        self.used_bytes -= swapped.num_bytes
        return swapped

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _first_blocks(self, num_tokens: int) -> tuple[int, ...]:
        """Per group, the first block that the coming token can see."""
        if self._keeps_windows:
            return (0,) * len(self._groups)
        return tuple(
            0 if group.window is None else max(0, (num_tokens - group.window + 1) // self._block_size)
            for group in self._groups
        )
