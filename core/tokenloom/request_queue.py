"""Waiting requests in order of arrival; preempted ones come back to their arrival's place."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import final, overload

from tokenloom.request import Request

__all__ = ["RequestQueue"]


@final
class RequestQueue(Sequence[Request]):
    """A sequence of requests sorted by (arrival time, order of first insertion)."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Request]] = []
        self._ranks: dict[str, int] = {}
        self._next_rank = 0

    def add(self, request: Request) -> None:
        """Inserts a new request, or one that comes back after preemption."""
        rank = self._ranks.get(request.request_id)
        if rank is None:
            rank = self._ranks[request.request_id] = self._next_rank
            self._next_rank += 1
        insort(self._entries, (request.arrival_time_s, rank, request), key=_sort_key)

    def remove(self, request: Request) -> None:
        """Takes a request out; it keeps its place for a later `add`."""
        place = (request.arrival_time_s, self._ranks.get(request.request_id, -1))
        index = bisect_left(self._entries, place, key=_sort_key)
        is_there = index < len(self._entries) and self._entries[index][2] is request
        assert is_there, f"request {request.request_id} does not wait"
        del self._entries[index]

    def forget(self, request_id: str) -> None:
        """Drops the place of a request that ended."""
        self._ranks.pop(request_id, None)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Request]:
        return (entry[2] for entry in self._entries)

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> list[Request]: ...
    def __getitem__(self, index: int | slice) -> Request | list[Request]:
        if isinstance(index, slice):
            return [entry[2] for entry in self._entries[index]]
        return self._entries[index][2]


def _sort_key(entry: tuple[float, int, Request]) -> tuple[float, int]:
    return entry[:2]
