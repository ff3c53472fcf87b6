"""What penalties and bad words know of a request's tokens, kept up to date by the tokens that it emits.

Only requests that use one of these options have a `TokenHistory`. A row behind drafts sees the tokens of its request
and, behind them, the drafts on its own path: what it would see if they had been emitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tokenloom.sampling_params import SamplingParams

__all__ = ["HistoryEdits", "RowHistory", "TokenHistory", "history_edits"]

_Int64 = npt.NDArray[np.int64]
_Float64 = npt.NDArray[np.float64]


@final
class TokenHistory:
    """One request's distinct tokens with their counts in the output, and the end of its output."""

    def __init__(
        self,
        params: SamplingParams,
        token_ids: Sequence[int],
        num_prompt_tokens: int,
        bad_words: Sequence[Sequence[int]],
    ) -> None:
        """Starts from the tokens there are.

        Args:
            params: says which options are on.
            token_ids: prompt and output so far.
            num_prompt_tokens: how many of them are the prompt.
            bad_words: of two tokens or more each.
        """
        self.weights = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
        self._counts_tokens = params.has_penalties
        # Tokens of the prompt count for the repetition penalty only.
        is_seen = token_ids[:num_prompt_tokens] if params.repetition_penalty != 1.0 else []
        self._token_ids: _Int64 = np.unique(np.asarray(is_seen, np.int64))
        self._counts: _Float64 = np.zeros(len(self._token_ids))
        self._num_distinct = len(self._token_ids)
        self._index = {token_id: index for index, token_id in enumerate(self._token_ids.tolist())}
        self._words_by_last: dict[int, list[tuple[int, ...]]] = {}
        for word in bad_words:
            assert len(word) >= 2, f"bad word {word} has no token before its last"
            self._words_by_last.setdefault(word[-2], []).append(tuple(word))
        self._longest_prefix = max((len(word) - 1 for word in bad_words), default=0)
        self._end: list[int] = []
        self.append(token_ids[num_prompt_tokens:])

    @property
    def has_penalties(self) -> bool:
        """Whether it counts tokens."""
        return self._counts_tokens

    def append(self, token_ids: Sequence[int]) -> None:
        """Takes in tokens that were emitted."""
        if self._longest_prefix > 0:
            self._end = [*self._end, *token_ids][-self._longest_prefix :]
        if self._counts_tokens:
            for token_id in token_ids:
                slot = self._slot_of(token_id)  # may replace the arrays
                self._counts[slot] += 1.0

    def counts(self, drafts: Sequence[int] = ()) -> tuple[_Int64, _Float64]:
        """The distinct tokens, and how often each stands in the output; views, if there are no drafts.

        Args:
            drafts: tokens that count as output, too.
        """
        token_ids, counts = self._token_ids[: self._num_distinct], self._counts[: self._num_distinct]
        if not drafts:
            return token_ids, counts
        counts = counts.copy()
        new: dict[int, float] = {}
        for token_id in drafts:
            index = self._index.get(token_id)
            if index is None:
                new[token_id] = new.get(token_id, 0.0) + 1.0
            else:
                counts[index] += 1.0
        return np.append(token_ids, np.array(list(new), np.int64)), np.append(counts, list(new.values()))

    def bad_tokens(self, drafts: Sequence[int] = ()) -> list[int]:
        """The tokens that would complete a bad word now, behind the output and `drafts`."""
        if not self._words_by_last:
            return []
        end = (*self._end, *drafts)
        return [
            word[-1]
            for word in (self._words_by_last.get(end[-1], ()) if end else ())
            if end[1 - len(word) :] == word[:-1]
        ]

    def _slot_of(self, token_id: int) -> int:
        """Where a token is counted; a new one takes the next place."""
        index = self._index.get(token_id)
        if index is None:
            index = self._index[token_id] = self._num_distinct
            if index == len(self._token_ids):
                self._token_ids = np.append(self._token_ids, np.zeros(index + 64, np.int64))
                self._counts = np.append(self._counts, np.zeros(index + 64))
            self._token_ids[index] = token_id
            self._num_distinct += 1
        return index


@final
@dataclass(frozen=True, slots=True)
class RowHistory:
    """A logits row of a request that has a history, and the drafts on its path, in order."""

    row: int
    history: TokenHistory
    drafts: Sequence[int] = ()


@final
@dataclass(frozen=True, slots=True)
class HistoryEdits:
    """What the histories of one step's rows change. N entries are counted tokens, M are forbidden ones.

    Attributes:
        sources: the rows that have a history.
        index: int64 [N], row * V + token id, all distinct.
        divisor: fp32 [N], repetition penalty.
        decrease: fp32 [N], count * frequency penalty + presence penalty of tokens that stand in the output.
        forbidden: int64 [M], as `index`.
    """

    sources: tuple[RowHistory, ...]
    index: Tensor
    divisor: Tensor
    decrease: Tensor
    forbidden: Tensor

    def select(self, rows: Sequence[int], vocab_size: int) -> HistoryEdits | None:
        """The changes of a batch whose row i is this one's row rows[i]; None if none are left."""
        by_row = {source.row: source for source in self.sources}
        chosen = [replace(by_row[row], row=place) for place, row in enumerate(rows) if row in by_row]
        return history_edits(chosen, vocab_size, self.index.device)

    def penalize(self, logits: Tensor) -> None:
        """Applies the penalties to fp32 logits [R, V], contiguous, in place."""
        if len(self.index) == 0:
            return
        flat = logits.view(-1)
        values = flat[self.index]
        values = torch.where(values > 0, values / self.divisor, values * self.divisor)
        flat[self.index] = values - self.decrease

    def forbid(self, logits: Tensor) -> None:
        """Sets tokens that complete a bad word to -inf in fp32 logits [R, V], contiguous."""
        if len(self.forbidden) > 0:
            logits.view(-1)[self.forbidden] = float("-inf")


def history_edits(
    rows: Sequence[RowHistory], vocab_size: int, device: torch.device | str = "cpu"
) -> HistoryEdits | None:
    """Lays out what the histories of some rows change; None if there are no such rows."""
    if not rows:
        return None
    counted = [
        (row.row, row.history.weights, *row.history.counts(row.drafts)) for row in rows if row.history.has_penalties
    ]
    forbidden = [row.row * vocab_size + token_id for row in rows for token_id in row.history.bad_tokens(row.drafts)]
    lengths = [len(token_ids) for _, _, token_ids, _ in counted]

    def spread(values: list[float]) -> _Float64:
        return np.repeat(np.array(values), lengths)

    first = np.repeat(np.array([row for row, _, _, _ in counted], np.int64) * vocab_size, lengths)
    token_ids = np.concatenate([np.zeros(0, np.int64), *(token_ids for _, _, token_ids, _ in counted)])
    counts = np.concatenate([np.zeros(0), *(counts for _, _, _, counts in counted)])
    frequency = spread([weights[1] for _, weights, _, _ in counted])
    presence = spread([weights[2] for _, weights, _, _ in counted])

    def tensor(values: _Float64) -> Tensor:
        return torch.from_numpy(values).to(device, torch.float32)

    return HistoryEdits(
        sources=tuple(rows),
        index=torch.from_numpy(first + token_ids).to(device),
        divisor=tensor(spread([weights[0] for _, weights, _, _ in counted])),
        decrease=tensor(counts * frequency + (counts > 0) * presence),
        forbidden=torch.tensor(forbidden, dtype=torch.int64, device=device),
    )
