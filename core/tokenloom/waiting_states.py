"""States of new verified tokens that wait for a drafter with KV memory of its own, while nothing is drafted.

A drafter must hear of every token, or its memory has holes. But where nobody wants drafts, nobody reads that memory
either: so it hears of many steps at once, and what a call costs whatever it is given is paid once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch

__all__ = ["NewTokens", "WaitingStates"]


@final
@dataclass(frozen=True, slots=True)
class NewTokens:
    """New verified tokens of some requests, one request after another.

    Attributes:
        request_ids: n requests.
        firsts: per request, the position of its first new token.
        counts: per request, its new tokens; R in all.
        states: per captured layer [R, H]; empty where nothing is captured.
    """

    request_ids: Sequence[str]
    firsts: Sequence[int]
    counts: Sequence[int]
    states: Mapping[int, torch.Tensor]

    @property
    def num_tokens(self) -> int:
        """R."""
        return sum(self.counts)


@final
class WaitingStates:
    """Keeps up to `capacity` tokens in the order in which they came."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._num_used = 0
        self._firsts: dict[str, int] = {}
        self._rows: dict[str, list[int]] = {}
        """Per request, the position of its first token that waits, and the buffers' rows of all of them in order."""
        self._buffers: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        """Requests that have tokens here."""
        return len(self._rows)

    def __contains__(self, request_id: str) -> bool:
        """Whether a request has tokens here."""
        return request_id in self._rows

    def has_room(self, num_tokens: int) -> bool:
        """Whether so many tokens fit behind those that are here."""
        return self._num_used + num_tokens <= self._capacity

    def add(self, new: NewTokens) -> None:
        """Copies states; there must be room. Tokens of a request that is here already follow its earlier ones."""
        begin, end = self._num_used, self._num_used + new.num_tokens
        assert end <= self._capacity, f"{end} tokens wait, of {self._capacity}"
        for layer, states in new.states.items():
            buffer = self._buffers.get(layer)
            if buffer is None:
                buffer = self._buffers[layer] = states.new_empty((self._capacity, states.shape[1]))
            buffer[begin:end] = states
        row, known, firsts = begin, self._rows, self._firsts
        for request_id, first, count in zip(new.request_ids, new.firsts, new.counts, strict=True):
            rows = known.get(request_id)
            if rows is None:
                rows, firsts[request_id] = known.setdefault(request_id, []), first
            assert firsts[request_id] + len(rows) == first, f"{request_id}: a gap before position {first}"
            rows += range(row, row + count)
            row += count
        self._num_used = end

    def take(self) -> NewTokens:
        """Takes all tokens out."""
        rows = [row for own in self._rows.values() for row in own]
        states = {
            layer: buffer.index_select(0, torch.tensor(rows, dtype=torch.int64, device=buffer.device))
            for layer, buffer in self._buffers.items()
        }
        counts = [len(own) for own in self._rows.values()]
        taken = NewTokens([*self._rows], [self._firsts[i] for i in self._rows], counts, states)
        self._rows.clear()
        self._firsts.clear()
        self._num_used = 0
        return taken
