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
@dataclass(frozen=True, slots=True)
class _Part:
    """What came at once, as in `NewTokens`: its states are in the buffers' rows, one part's behind the other's.
    Requests that were dropped are None."""

    request_ids: list[str | None]
    firsts: Sequence[int]
    counts: Sequence[int]

    def place(self, request_id: str) -> int | None:
        """Which of the requests this one is."""
        return self.request_ids.index(request_id) if request_id in self.request_ids else None


@final
class WaitingStates:
    """Keeps up to `capacity` tokens in the order in which they came."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._num_used = 0
        self._parts: list[_Part] = []
        self._request_ids: set[str] = set()
        self._buffers: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        """Requests that have tokens here."""
        return len(self._request_ids)

    def __contains__(self, request_id: str) -> bool:
        """Whether a request has tokens here."""
        return request_id in self._request_ids

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
        self._parts.append(_Part(list(new.request_ids), new.firsts, new.counts))
        self._request_ids.update(new.request_ids)
        self._num_used = end

    def positions(self, request_id: str) -> range:
        """Positions of a request's tokens that are here."""
        found = [
            range(part.firsts[place], part.firsts[place] + part.counts[place])
            for part in self._parts
            if (place := part.place(request_id)) is not None
        ]
        return range(found[0].start, found[-1].stop) if found else range(0)

    def drop(self, request_id: str) -> None:
        """Forgets a request's tokens. Their room is free again when nothing else is here."""
        self._request_ids.discard(request_id)
        if not self._request_ids:
            self._clear()
        for part in self._parts:
            place = part.place(request_id)
            if place is not None:
                part.request_ids[place] = None

    def take(self) -> NewTokens:
        """Takes all tokens out, those of a request together."""
        firsts, rows_of = dict[str, int](), dict[str, list[int]]()
        row = 0
        for part in self._parts:
            for request_id, first, count in zip(part.request_ids, part.firsts, part.counts, strict=True):
                begin, row = row, row + count
                if request_id is None:
                    continue
                rows = rows_of.get(request_id)
                if rows is None:
                    rows, firsts[request_id] = rows_of.setdefault(request_id, []), first
                assert firsts[request_id] + len(rows) == first, f"{request_id}: a gap before position {first}"
                rows += range(begin, row)
        chosen = [row for own in rows_of.values() for row in own]
        states = {
            layer: buffer.index_select(0, torch.tensor(chosen, dtype=torch.int64, device=buffer.device))
            for layer, buffer in self._buffers.items()
        }
        taken = NewTokens([*rows_of], [*firsts.values()], [len(own) for own in rows_of.values()], states)
        self._clear()
        return taken

    def _clear(self) -> None:
        self._parts.clear()
        self._request_ids.clear()
        self._num_used = 0
