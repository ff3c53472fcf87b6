"""The compressed tree behind `cache=radix`: nodes hold runs of blocks, and a run ends where sequences part."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from tokenloom.interfaces.cache import BlockKey

__all__ = ["RadixTree", "TreeShape"]

_ROOT: BlockKey = b""
"""Stands for the key before a sequence's first block; no block has it."""


@dataclass(frozen=True, slots=True)
class TreeShape:
    """What a tree looks like, for reports.

    Attributes:
        num_blocks: indexed blocks.
        num_nodes: runs that they form.
        num_leaves: runs that no other follows.
        depth: runs from a root to the farthest leaf.
        num_shared_blocks: blocks that lie on the way to more than one leaf.
    """

    num_blocks: int
    num_nodes: int
    num_leaves: int
    depth: int
    num_shared_blocks: int


@final
@dataclass(slots=True, eq=False)
class _Node:
    """A run of consecutive blocks of a sequence: those of index start..end-1.

        keys, block_ids   [ dropped | the run             ]
                            ^ origin  ^ start               ^ end

    Attributes:
        parent_key: key of the block before the run, indexed or not; `_ROOT` where a sequence starts.
        start: index of the first block in its sequence.
        origin: index of the lists' first entry. Blocks leave the front by moving `start`; the lists follow when most
            of them is dropped, so that this costs O(1) per block whatever the length of the run.
    """

    parent_key: BlockKey
    start: int
    origin: int
    keys: list[BlockKey]
    block_ids: list[int]

    @property
    def end(self) -> int:
        return self.origin + len(self.keys)

    def drop_front(self, count: int) -> None:
        self.start += count
        self._tidy()

    def drop_back(self, count: int) -> None:
        del self.keys[-count:], self.block_ids[-count:]
        self._tidy()

    def _tidy(self) -> None:
        num_dropped = self.start - self.origin
        if 2 * num_dropped > len(self.keys):
            del self.keys[:num_dropped], self.block_ids[:num_dropped]
            self.origin = self.start

    def agreement(self, keys: Sequence[BlockKey], index: int) -> int:
        """How many blocks from `index` on the run has in common with `keys`; keys[index] is known to be one.

        Keys chain, so blocks agree up to the first that differs and never again: the last key decides, or bisection.
        """
        most = min(self.end, len(keys)) - index
        shift = index - self.origin
        if keys[index + most - 1] == self.keys[shift + most - 1]:
            return most
        return bisect_left(range(most), True, key=lambda i: keys[index + i] != self.keys[shift + i])


@final
class RadixTree:
    """Blocks by key, in runs. A block whose predecessor is not indexed starts a run of its own, under that key.

    A dictionary finds a block's run by its key, so adding and taking out are O(1) but for splits. A split moves the
    shorter part, and runs are never joined, so a block moves O(log n) times at most, all splits together. A search
    takes O(log n) comparisons for each run that it passes, not one for each block.
    """

    def __init__(self) -> None:
        self._block_of: dict[BlockKey, int] = {}
        self._node_of: dict[int, _Node] = {}
        self._index_of: dict[int, int] = {}
        # Runs that follow a key. Only the last key of a run, or one that is not indexed, has any.
        self._num_behind: dict[BlockKey, int] = {}

    def __contains__(self, block_id: object) -> bool:
        return block_id in self._node_of

    def __len__(self) -> int:
        return len(self._node_of)

    def find(self, key: BlockKey) -> int | None:
        """The block under a key."""
        return self._block_of.get(key)

    def key(self, block_id: int) -> BlockKey:
        """The key of an indexed block."""
        node = self._node_of[block_id]
        return node.keys[self._index_of[block_id] - node.origin]

    def parent_key(self, block_id: int) -> BlockKey:
        """The key of the block before an indexed one in its sequence; b"" for the first."""
        node, index = self._node_of[block_id], self._index_of[block_id]
        return node.parent_key if index == node.start else node.keys[index - 1 - node.origin]

    def prefix(self, keys: Sequence[BlockKey]) -> list[int]:
        """Ids of the leading blocks, up to the first that is not indexed."""
        block_ids: list[int] = []
        while len(block_ids) < len(keys):
            index = len(block_ids)
            block_id = self._block_of.get(keys[index])
            if block_id is None:
                break
            node = self._node_at(block_id, keys, index)
            count = node.agreement(keys, index)
            block_ids += node.block_ids[index - node.origin : index - node.origin + count]
            if index + count < node.end:
                break
        return block_ids

    def run_before(self, keys: Sequence[BlockKey], end: int, count: int) -> list[int]:
        """Ids of the last `count` blocks before index `end`; fewer if one of them is not indexed, then those behind it.

        Keys chain: one that is found in the middle of a run vouches for those before it.
        """
        parts: list[list[int]] = []
        index, first = end, end - count
        while index > first:
            block_id = self._block_of.get(keys[index - 1])
            if block_id is None:
                break
            node = self._node_at(block_id, keys, index - 1)
            start = max(node.start, first)
            parts.append(node.block_ids[start - node.origin : index - node.origin])
            index = start
        return [block_id for part in reversed(parts) for block_id in part]

    def add(self, keys: Sequence[BlockKey], index: int, block_id: int) -> None:
        """Puts a block under keys[index], which is not taken. Where a run goes on differently, it is split."""
        key, parent_key = keys[index], keys[index - 1] if index else _ROOT
        parent_id = self._block_of.get(parent_key)
        node = None if parent_id is None else self._node_at(parent_id, keys, index - 1)
        if node is not None and index < node.end:
            self._split(node, index)
        if node is not None and not self._num_behind.get(parent_key):
            node.keys.append(key)
            node.block_ids.append(block_id)
        else:
            node = _Node(parent_key, index, index, [key], [block_id])
            self._count_behind(parent_key, 1)
        self._block_of[key] = block_id
        self._node_of[block_id] = node
        self._index_of[block_id] = index

    def take_out(self, block_id: int) -> None:
        """Forgets an indexed block. What follows it keeps its place under the block's key."""
        index = self._index_of[block_id]
        if self._node_of[block_id].start < index < self._node_of[block_id].end - 1:
            self._split(self._node_of[block_id], index + 1)
        node = self._node_of.pop(block_id)
        key = node.keys[index - node.origin]
        if index == node.end - 1:
            node.drop_back(1)
            if node.start == node.end:
                self._count_behind(node.parent_key, -1)
        else:
            self._count_behind(node.parent_key, -1)
            self._count_behind(key, 1)
            node.parent_key = key
            node.drop_front(1)
        del self._block_of[key], self._index_of[block_id]

    def shape(self) -> TreeShape:
        """Measures the tree; O(n log n)."""
        nodes = sorted(dict.fromkeys(self._node_of.values()), key=lambda node: node.start)
        levels: dict[BlockKey, int] = {}
        for node in nodes:
            levels[node.keys[-1]] = levels.get(node.parent_key, 0) + 1
        num_shared, num_leaves = 0, 0
        leaves_behind: dict[BlockKey, int] = {}
        for node in reversed(nodes):
            leaves = leaves_behind.get(node.keys[-1], 0)
            num_leaves += not leaves
            num_shared += (node.end - node.start) * (leaves > 1)
            leaves_behind[node.parent_key] = leaves_behind.get(node.parent_key, 0) + max(1, leaves)
        return TreeShape(len(self), len(nodes), num_leaves, max(levels.values(), default=0), num_shared)

    def _node_at(self, block_id: int, keys: Sequence[BlockKey], index: int) -> _Node:
        """The run of a block that was found under keys[index]. If keys do not chain, a search may go in circles."""
        known = self._index_of[block_id]
        assert known == index, f"keys must chain: {keys[index].hex()} is block {known} here and {index} there"
        return self._node_of[block_id]

    def _split(self, node: _Node, index: int) -> None:
        """Cuts a run in two before `index`. The shorter part becomes a new node, the longer keeps its blocks' place."""
        at = index - node.origin
        parent_key = node.keys[at - 1]
        if index - node.start < node.end - index:
            first = node.start - node.origin
            part = _Node(node.parent_key, node.start, node.start, node.keys[first:at], node.block_ids[first:at])
            node.parent_key = parent_key
            node.drop_front(at - first)
        else:
            part = _Node(parent_key, index, index, node.keys[at:], node.block_ids[at:])
            node.drop_back(len(part.keys))
        self._node_of.update(dict.fromkeys(part.block_ids, part))
        self._count_behind(parent_key, 1)

    def _count_behind(self, key: BlockKey, change: int) -> None:
        count = self._num_behind.get(key, 0) + change
        if count:
            self._num_behind[key] = count
        else:
            del self._num_behind[key]
