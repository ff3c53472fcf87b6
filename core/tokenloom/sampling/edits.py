"""Edits of single logits that a request's settings fix from the start: biases, allowed and forbidden token ids.

Rows differ in how many they have, so the entries of all rows lie one after another ("ragged"), and a step's rows are
gathered from them. A batch in which nobody asked for any holds none of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tokenloom.sampling_params import SamplingParams

__all__ = ["LogitEdits", "RaggedEntries", "RowEdits", "row_edits"]

_FOR_GOOD = 2**62
_Int64 = npt.NDArray[np.int64]
_Numbers = npt.NDArray[np.float64] | _Int64
_Entries = tuple[_Int64, _Numbers]
"""Token ids, and a number for each."""


@final
@dataclass(frozen=True, slots=True)
class RowEdits:
    """The edits of one request, each as token ids and numbers; None where it has none.

    Attributes:
        bias: the numbers are added.
        allowed: only these can be chosen; the numbers mean nothing.
        forbidden: cannot be chosen while the row's output position is below the number.
    """

    bias: _Entries | None
    allowed: _Entries | None
    forbidden: _Entries | None


def row_edits(params: SamplingParams, stop_ids: Sequence[int], bad_ids: Sequence[int]) -> RowEdits | None:
    """The edits that a request's settings ask for; None if there are none.

    Args:
        params: of the request.
        stop_ids: cannot be chosen before `params.min_tokens`.
        bad_ids: cannot be chosen at all.
    """
    until = params.min_tokens if stop_ids else 0
    if not (params.logit_bias or params.allowed_token_ids or bad_ids or until):
        return None
    bias, allowed = params.logit_bias, params.allowed_token_ids
    forbidden = [(token_id, _FOR_GOOD) for token_id in bad_ids]
    if until > 0:
        forbidden += [(token_id, until) for token_id in stop_ids]
    return RowEdits(
        bias=(np.array(list(bias), np.int64), np.array(list(bias.values()), np.float64)) if bias else None,
        allowed=(np.array(allowed, np.int64), np.zeros(len(allowed), np.int64)) if allowed else None,
        forbidden=(
            (np.array([i for i, _ in forbidden], np.int64), np.array([n for _, n in forbidden], np.int64))
            if forbidden
            else None
        ),
    )


@final
@dataclass(frozen=True, slots=True)
class RaggedEntries:
    """N entries of R rows, at least one, ordered by row. Host copies serve to select rows.

    Attributes:
        counts_cpu: int64 [R], entries of each row.
        token_ids_cpu: int64 [N].
        numbers_cpu: float64 or int64 [N].
        index: int64 [N], row * V + token id: where the entry lies in the flattened logits.
        entry_rows: int64 [N], the row of each entry.
        rows: int64 [number of rows that have entries].
        numbers: fp32 or int64 [N].
    """

    counts_cpu: _Int64
    token_ids_cpu: _Int64
    numbers_cpu: _Numbers
    index: Tensor
    entry_rows: Tensor
    rows: Tensor
    numbers: Tensor

    @classmethod
    def build(
        cls, counts: _Int64, entries: _Entries, vocab_size: int, device: torch.device | str
    ) -> RaggedEntries | None:
        """Lays out entries, counts[i] of them for row i; None if there are none."""
        token_ids, numbers = entries
        if len(token_ids) == 0:
            return None
        rows = np.repeat(np.arange(len(counts)), counts)
        values = torch.from_numpy(numbers)
        return cls(
            counts_cpu=counts,
            token_ids_cpu=token_ids,
            numbers_cpu=numbers,
            index=torch.from_numpy(rows * vocab_size + token_ids).to(device),
            entry_rows=torch.from_numpy(rows).to(device),
            rows=torch.from_numpy(np.flatnonzero(counts)).to(device),
            numbers=(values.to(torch.float32) if values.is_floating_point() else values).to(device),
        )

    def select(self, rows: Sequence[int], vocab_size: int) -> RaggedEntries | None:
        """The entries of a batch whose row i is this one's row rows[i]."""
        chosen = np.asarray(rows, np.int64)
        counts = self.counts_cpu[chosen]
        starts = (np.cumsum(self.counts_cpu) - self.counts_cpu)[chosen]
        # The entry's number within its row, counted from where that row's entries start here.
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        source = np.repeat(starts, counts) + within
        entries = (self.token_ids_cpu[source], self.numbers_cpu[source])
        return self.build(counts, entries, vocab_size, self.index.device)


@final
@dataclass(frozen=True, slots=True)
class LogitEdits:
    """The edits of R rows, at least one; a part that no row has is None. Attributes as in `RowEdits`."""

    bias: RaggedEntries | None
    allowed: RaggedEntries | None
    forbidden: RaggedEntries | None

    @classmethod
    def build(
        cls, rows: Sequence[RowEdits | None], vocab_size: int, device: torch.device | str = "cpu"
    ) -> LogitEdits | None:
        """Lays out the edits of R rows; None if no row has any."""
        if not any(rows):
            return None
        return cls(
            _concatenated([row and row.bias for row in rows], vocab_size, device),
            _concatenated([row and row.allowed for row in rows], vocab_size, device),
            _concatenated([row and row.forbidden for row in rows], vocab_size, device),
        )

    def select(self, rows: Sequence[int], vocab_size: int) -> LogitEdits | None:
        """The edits of a batch whose row i is this one's row rows[i]; None if none are left."""
        parts = [part and part.select(rows, vocab_size) for part in (self.bias, self.allowed, self.forbidden)]
        return LogitEdits(*parts) if any(parts) else None

    def add_bias(self, logits: Tensor) -> None:
        """Adds the biases to fp32 logits [R, V], contiguous, in place."""
        if self.bias is not None:
            logits.view(-1).index_add_(0, self.bias.index, self.bias.numbers)

    def keep_allowed(self, logits: Tensor) -> None:
        """Sets all but the allowed tokens to -inf, in rows that have such, in fp32 logits [R, V], contiguous."""
        if self.allowed is not None:
            flat = logits.view(-1)
            kept = flat[self.allowed.index]
            logits[self.allowed.rows] = float("-inf")
            flat[self.allowed.index] = kept

    def forbid(self, logits: Tensor, position: Tensor) -> None:
        """Sets forbidden tokens to -inf in fp32 logits [R, V], contiguous; position is int64 [R]."""
        flat = logits.view(-1)
        if self.forbidden is not None:
            is_active = position[self.forbidden.entry_rows] < self.forbidden.numbers  # [N]
            # Added, not set: a token may be listed twice, once for good and once until the minimum is reached.
            flat.index_add_(0, self.forbidden.index, torch.where(is_active, float("-inf"), 0.0).to(flat.dtype))


def _concatenated(rows: Sequence[_Entries | None], vocab_size: int, device: torch.device | str) -> RaggedEntries | None:
    present = [row for row in rows if row is not None]
    if not present:
        return None
    counts = np.array([0 if row is None else len(row[0]) for row in rows], np.int64)
    token_ids, numbers = np.concatenate([row[0] for row in present]), np.concatenate([row[1] for row in present])
    outside = token_ids[(token_ids < 0) | (token_ids >= vocab_size)]
    assert len(outside) == 0, f"token ids {outside.tolist()} outside 0..{vocab_size - 1}"
    return RaggedEntries.build(counts, (token_ids, numbers), vocab_size, device)
