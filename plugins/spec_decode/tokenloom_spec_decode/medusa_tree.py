"""Static draft trees: which guesses of which heads are worth a place, by how often each head's i-th guess is right.

A path names the rank of the guess taken at each depth: (0,) is the first head's best guess, (1, 0) the second head's
best one behind the first head's second best. The value of a node is the product of the accuracies along its path, and
a tree of n nodes holds the n nodes of the greatest value: what it gains per step is their sum.

Source: Cai et al., "Medusa: Simple LLM inference acceleration framework with multiple decoding heads" (2024).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from tokenloom.errors import ConfigError

__all__ = ["DraftTree", "Path", "check_paths", "default_accuracies", "greedy_tree"]

Path = tuple[int, ...]

_BEST, _BY_HEAD, _BY_RANK, _NUM_RANKS = 0.6, 0.8, 0.35, 10


@final
@dataclass(frozen=True, slots=True)
class DraftTree:
    """Nodes in an order whose every prefix is a tree.

    Attributes:
        heads: per node its depth, counted from 0: the head that guesses it.
        ranks: per node, which of the head's guesses it is.
        parents: per node the index of its parent, -1 for children of the last verified token.
    """

    heads: tuple[int, ...]
    ranks: tuple[int, ...]
    parents: tuple[int, ...]

    @staticmethod
    def of(paths: Sequence[Path]) -> DraftTree:
        """From paths that `check_paths` accepts."""
        index = {path: number for number, path in enumerate(paths)}
        return DraftTree(
            tuple(len(path) - 1 for path in paths),
            tuple(path[-1] for path in paths),
            tuple(index.get(path[:-1], -1) for path in paths),
        )

    def num_ranks(self, head: int) -> int:
        """How many guesses of a head the tree uses."""
        return max((rank + 1 for own, rank in zip(self.heads, self.ranks, strict=True) if own == head), default=0)


def greedy_tree(accuracies: Sequence[Sequence[float]], num_nodes: int) -> list[Path]:
    """The tree of the greatest gain, its nodes by falling value.

    Args:
        accuracies: per head, how often its best guess is right, its second best, ...; each at least 0.
        num_nodes: most nodes. Nodes that are never right are left out.

    Returns:
        Paths; a parent stands before its children, and a sibling of lower rank before one of higher rank.
    """
    orders = [_by_falling(shares) for shares in accuracies]
    paths: list[Path] = []
    # Candidates: of each node in the tree its next sibling and its first child, by place in its head's order.
    heap: list[tuple[float, int, Path, float]] = []

    def offer(places: Path, parent_value: float) -> None:
        depth, place = len(places) - 1, places[-1]
        if depth < len(orders) and place < len(orders[depth]):
            value = parent_value * accuracies[depth][orders[depth][place]]
            if value > 0.0:
                heapq.heappush(heap, (-value, len(places), places, parent_value))

    offer((0,), 1.0)
    while heap and len(paths) < num_nodes:
        value, _, places, parent_value = heapq.heappop(heap)
        paths.append(tuple(orders[depth][place] for depth, place in enumerate(places)))
        offer((*places[:-1], places[-1] + 1), parent_value)
        offer((*places, 0), -value)
    return paths


def _by_falling(shares: Sequence[float]) -> list[int]:
    """Ranks by falling share; equal ones as they stand."""
    return sorted(range(len(shares)), key=lambda rank: -shares[rank])


def check_paths(paths: Sequence[Path]) -> None:
    """Refuses paths that are no tree in an order that can be cut anywhere.

    Raises:
        ConfigError: a path is empty, negative, there twice, or stands before its parent.
    """
    seen: set[Path] = {()}
    for path in paths:
        if not path or min(path) < 0 or path in seen:
            raise ConfigError(
                f"a draft tree needs distinct paths of ranks from 0 on, e.g. [[0],[1],[0,0]]; got {list(path)}"
                f"{' twice' if path and path in seen else ''}"
            )
        if path[:-1] not in seen:
            raise ConfigError(f"the draft tree's path {list(path)} must stand behind its parent {list(path[:-1])}")
        seen.add(path)


def default_accuracies(num_heads: int) -> list[list[float]]:
    """What to expect of heads that nobody has measured: each is less often right, and so is each further guess."""
    return [[_BEST * _BY_HEAD**head * _BY_RANK**rank for rank in range(_NUM_RANKS)] for head in range(num_heads)]
