"""Searches which parts of a model a draft can do without, by how often the drafts are right.

Windows of drafts alternate between the best set so far and a changed copy of it, so that both are measured on much the
same text; the copy takes its place where more of its drafts were right. Source: Xia et al., "SWIFT: On-the-Fly
Self-Speculative Decoding for LLM Inference Acceleration" (2024), whose objective is the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import final

from tokenloom.interfaces.spec_decode import LayerParts

__all__ = ["SkipSearch", "SkipSet", "parts_without"]

_WINDOW = 48
"""Drafts that a set is measured on before the turn changes."""
_DECAY = 0.7
"""What the best set's older windows count against the next one."""
_MOST_SWAPS = 3


@final
@dataclass(frozen=True, slots=True)
class SkipSet:
    """Numbers of the layers whose attention, and whose feed-forward network, is left out; ascending."""

    attention: tuple[int, ...]
    ffn: tuple[int, ...]


def parts_without(skipped: SkipSet, num_layers: int) -> LayerParts:
    """What runs of a model's layers, all but those skipped."""
    return LayerParts(
        tuple(layer not in skipped.attention for layer in range(num_layers)),
        tuple(layer not in skipped.ffn for layer in range(num_layers)),
    )


@final
class SkipSearch:
    """One search. Equal observations give equal sets.

    Args:
        num_layers: of the model.
        share: of all parts, how many to leave out. The first and the last layer always run, but where there is no
            other.
        num_drafts: drafts to measure before the best set stays.

    Attributes:
        trial: number of the window that runs now; outcomes of drafts from earlier ones say nothing about it.
    """

    def __init__(self, num_layers: int, share: float, num_drafts: int) -> None:
        layers = range(1, num_layers - 1) if num_layers > 2 else range(num_layers - 1, num_layers)
        # Part 2 i is the attention of layer i, 2 i + 1 its feed-forward network.
        self._eligible = [part for layer in layers for part in (2 * layer, 2 * layer + 1)]
        count = max(1, min(round(share * 2 * num_layers), len(self._eligible)))
        step = len(self._eligible) / count
        self._best = frozenset(self._eligible[int(step * (number + 0.5))] for number in range(count))
        self._tried: frozenset[int] | None = None
        self._best_right, self._best_count = 0.0, 0.0
        self._num_right = self._num_observed = 0
        self._num_left = num_drafts
        self._random = random.Random(0)
        self.trial = 0

    @property
    def is_over(self) -> bool:
        """Whether the set stays from now on."""
        return self._num_left <= 0

    @property
    def rate(self) -> float:
        """How often drafts of the best set were right, 0..1."""
        return self._best_right / self._best_count if self._best_count else 0.0

    def current(self) -> SkipSet:
        """The set to draft with now."""
        parts = self._best if self._tried is None else self._tried
        return SkipSet(
            tuple(sorted(part // 2 for part in parts if part % 2 == 0)),
            tuple(sorted(part // 2 for part in parts if part % 2 == 1)),
        )

    def observe(self, num_right: int, num_tried: int) -> None:
        """Takes the outcomes of drafts of this trial into account."""
        self._num_right += num_right
        self._num_observed += num_tried

    def advance(self) -> None:
        """Goes on to the next window if this one is full; called between proposals, so that all of one run alike."""
        if self.is_over or self._num_observed < _WINDOW:
            return
        right, count = self._num_right, self._num_observed
        self._num_left -= count
        self._num_right = self._num_observed = 0
        self.trial += 1
        if self._tried is None:
            self._best_right = self._best_right * _DECAY + right
            self._best_count = self._best_count * _DECAY + count
        elif right / count > self.rate:
            self._best, self._best_right, self._best_count = self._tried, float(right), float(count)
        self._tried = self._changed() if self._tried is None and not self.is_over else None

    def _changed(self) -> frozenset[int] | None:
        """The best set with some of its parts exchanged for others; None where there are no others."""
        skipped = sorted(self._best)
        running = [part for part in self._eligible if part not in self._best]
        count = min(self._random.randint(1, _MOST_SWAPS), len(skipped), len(running))
        if count == 0:
            return None
        gone, come = self._random.sample(skipped, count), self._random.sample(running, count)
        return (self._best - frozenset(gone)) | frozenset(come)
