"""Which tokens a head can draft: those that the target says most often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import final

import torch

__all__ = ["DraftVocabulary"]


@final
class DraftVocabulary:
    """Some tokens of a vocabulary, rising.

    Args:
        ids: int64 [D], rising ids of the target.
        vocab_size: V of the target.
    """

    def __init__(self, ids: torch.Tensor, vocab_size: int) -> None:
        self.ids = ids
        self.vocab_size = vocab_size
        self.column_of = torch.full((vocab_size,), -1, device=ids.device)
        """int64 [V]: where each token stands among `ids`; -1 for one that cannot be drafted."""
        self.column_of[ids] = torch.arange(len(ids), device=ids.device)

    @classmethod
    def most_frequent(cls, answers: Iterable[Sequence[int]], size: int, vocab_size: int) -> DraftVocabulary:
        """The `size` tokens that occur most often in answers; among equals, and to fill up, the lowest ids."""
        counts: Counter[int] = Counter()
        for answer in answers:
            counts.update(answer)
        best = sorted(range(vocab_size), key=lambda token_id: -counts[token_id])[:size]
        return cls(torch.tensor(sorted(best)), vocab_size)

    @property
    def offsets(self) -> torch.Tensor:
        """int64 [D], `d2t`: what is added to a column to get the target's id."""
        return self.ids - torch.arange(len(self.ids), device=self.ids.device)

    @property
    def mask(self) -> torch.Tensor:
        """bool [V], `t2d`: which tokens can be drafted."""
        return self.column_of >= 0
