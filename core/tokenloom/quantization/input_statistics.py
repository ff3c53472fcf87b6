"""What a method is told of a layer's input: sums over all rows of the text, gathered a sequence at a time."""

from __future__ import annotations

from typing import final

import torch

__all__ = ["NUM_SAMPLED", "InputStatistics"]

NUM_SAMPLED = 512
"""Rows that are kept where a method asks for no more."""
_BLOCK = 512


@final
class InputStatistics:
    """Sums over the input rows of one linear layer.

    Args:
        num_columns: K, input features.
        num_sequences: how often `add` will be called; spreads the sampled rows over all of them.
        has_gram: whether the products of features are summed, which takes K^2 numbers and most of the time.
        num_sampled: about how many rows are kept.
    """

    def __init__(self, num_columns: int, num_sequences: int, *, has_gram: bool, num_sampled: int = NUM_SAMPLED) -> None:
        self.num_rows = 0
        self._gram = torch.zeros(num_columns, num_columns) if has_gram else None  # upper blocks alone
        self._sum_abs = torch.zeros(num_columns, dtype=torch.float64)
        self._max_abs = torch.zeros(num_columns)
        self._rows_each = -(-num_sampled // num_sequences)
        self._sampled: list[torch.Tensor] = []

    def add(self, rows: torch.Tensor) -> None:
        """Takes the input of one sequence: [T, K], any floating dtype; not changed."""
        wide = rows.float()
        magnitude = wide.abs()
        self.num_rows += rows.shape[0]
        self._sum_abs += magnitude.sum(dim=0, dtype=torch.float64)
        self._max_abs = torch.maximum(self._max_abs, magnitude.amax(dim=0))
        stride = max(1, rows.shape[0] // self._rows_each)
        self._sampled.append(wide[stride // 2 :: stride][: self._rows_each].clone())
        if self._gram is None:
            return
        starts = range(0, wide.shape[1], _BLOCK)
        for start in starts:  # the product is symmetric: only blocks on and above the diagonal
            left = wide[:, start : start + _BLOCK].T
            self._gram[start : start + _BLOCK, start:].addmm_(left, wide[:, start:])

    def gram(self) -> torch.Tensor:
        """Mean of x x^T over all rows, fp32 [K, K], a new tensor."""
        assert self._gram is not None, "products of features were not gathered"
        upper = self._gram.triu()
        return (upper + upper.triu(1).T) / max(1, self.num_rows)

    @property
    def mean_abs(self) -> torch.Tensor:
        """Mean of |x|, fp32 [K]."""
        return (self._sum_abs / max(1, self.num_rows)).float()

    @property
    def max_abs(self) -> torch.Tensor:
        """Largest |x|, fp32 [K]."""
        return self._max_abs

    def sample(self, limit: int = NUM_SAMPLED) -> torch.Tensor:
        """Some rows, about `limit` at most, spread evenly over all of them: fp32 [R, K]."""
        rows = torch.cat(self._sampled)
        return rows[:: max(1, rows.shape[0] // limit)]
