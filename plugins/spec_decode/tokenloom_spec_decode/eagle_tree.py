"""A draft tree that grows where a head is confident.

At each depth the `width` nodes of the greatest value grow on, each by its `width` most likely tokens; the value of a
node is the sum of the log-probabilities along its path. In the end the nodes of the greatest value are proposed: a
child is never worth more than its parent, so they hang together. Nodes below a least value are left out.

Source: Li et al., "EAGLE-2: Faster inference of language models with dynamic draft trees" (2024).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from tokenloom.interfaces.spec_decode import Proposal

__all__ = ["GrowingTree"]


@final
@dataclass(slots=True)
class GrowingTree:
    """The tree of one request.

    Attributes:
        max_nodes: most nodes to propose. The head runs over at most one node less, for want of slots beyond.
        width: nodes that grow on at each depth, and children of each.
        least_value: of a node that grows on or is proposed.
        token_ids, parents, values: per node that was found; -1 for children of the last verified token.
        run: indices of the nodes that the head has run over, or is to run over next; parents first.
        num_new: how many of these are new.
    """

    max_nodes: int
    width: int
    least_value: float = -math.inf
    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    run: list[int] = field(default_factory=list)
    num_new: int = 0

    def add(self, parent: int, token_ids: Sequence[int], log_probs: Sequence[float]) -> None:
        """Adds the most likely tokens behind a node, -1 for the last verified token."""
        above = self.values[parent] if parent >= 0 else 0.0
        self.token_ids += token_ids
        self.parents += [parent] * len(token_ids)
        self.values += [above + min(value, 0.0) for value in log_probs]  # rounding may leave a trace above 0

    def grow(self, first: int) -> None:
        """Chooses among the nodes from index `first` on those that grow on: the best, as far as slots reach."""
        count = min(self.width, self.max_nodes - 1 - len(self.run))
        best = self._best(first)[: max(0, count)]
        self.run += best
        self.num_new = len(best)

    def run_parents(self) -> list[int]:
        """For each node of `run`, the index of its parent there; -1 for none."""
        place = {node: index for index, node in enumerate(self.run)}
        return [place.get(self.parents[node], -1) for node in self.run]

    def proposal(self) -> Proposal:
        """The best nodes, by falling value, so that any prefix is the best tree of its size."""
        # Found in order of depth: among equal values a parent comes before its children.
        order = self._best(0)[: self.max_nodes]
        place = {node: index for index, node in enumerate(order)}
        parents = tuple(place.get(self.parents[node], -1) for node in order)
        ids = tuple(self.token_ids[node] for node in order)
        return Proposal(ids) if parents == tuple(range(-1, len(ids) - 1)) else Proposal(ids, parents)

    def _best(self, first: int) -> list[int]:
        """The nodes from index `first` on that are likely enough, by falling value."""
        likely = [node for node in range(first, len(self.values)) if self.values[node] >= self.least_value]
        return sorted(likely, key=lambda node: -self.values[node])
