"""Blocks that sequences take while all of them grow by a token a step, at any step, however many there are."""

from __future__ import annotations

from typing import final

__all__ = ["BlockGrowth"]


@final
class BlockGrowth:
    """A set of sequences. What they take at a step costs O(block_size) to ask, which is less than looking at each.

    A sequence that begins with q * block_size + m slots (m < block_size) takes one block more in each block_size steps;
    at which of them follows from m alone, so it is enough to count the sequences by m.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.num_sequences = 0
        self._num_full = 0
        self._by_rest = [0] * block_size

    def add(self, num_slots: int) -> None:
        """Takes in a sequence of so many slots."""
        self._count(num_slots, 1)

    def remove(self, num_slots: int) -> None:
        """Takes out one that was added with so many."""
        self._count(num_slots, -1)

    def num_blocks(self, num_steps: int) -> int:
        """Sum of ceil((slots + num_steps) / block_size)."""
        num_full, rest = divmod(num_steps, self._block_size)
        total = self._num_full + self.num_sequences * num_full
        if rest == 0:
            return total + self.num_sequences - self._by_rest[0]
        return total + self.num_sequences + sum(self._by_rest[self._block_size - rest + 1 :])

    def _count(self, num_slots: int, change: int) -> None:
        num_full, rest = divmod(num_slots, self._block_size)
        self._num_full += change * num_full
        self.num_sequences += change
        self._by_rest[rest] += change
