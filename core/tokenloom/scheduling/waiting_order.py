"""Requests that wait, in order of arrival; one that comes back after a preemption gets its place again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TypeVar, final, overload

from tokenloom.interfaces.scheduler_events import (
    RequestAdmitted,
    RequestArrived,
    RequestFinished,
    RequestPreempted,
    SchedulerEvent,
)
from tokenloom.request import RequestView

__all__ = ["WaitingOrder"]

R = TypeVar("R", bound=RequestView)


@final
class WaitingOrder(Sequence[R]):
    """A sequence of requests sorted by (arrival time, order of first insertion).

    The core's own queue is one. A policy that keeps something of those that wait has another one: told of every event,
    it holds the requests of `SchedulerView.waiting`, whatever state they wait in and however often they are preempted.

        self._waiting = WaitingOrder[RequestView]()             # in __init__
        self._waiting.observe(event)                            # in observe
        for request in self._waiting[: self._waiting.place(admitted)]:      # who arrived before, and waits on
    """

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, R]] = []
        self._waiting: dict[str, R] = {}
        self._ranks: dict[str, int] = {}
        """Also of those that do not wait now, until they are forgotten."""
        self._next_rank = 0

    def observe(self: WaitingOrder[RequestView], event: SchedulerEvent) -> None:
        """Follows what a policy is told; an event that changes nothing for a request may come again."""
        if isinstance(event, (RequestArrived, RequestPreempted)):
            self.add(event.request)
        elif isinstance(event, RequestAdmitted):
            self.discard(event.request)
        elif isinstance(event, RequestFinished):
            self.discard(event.request)
            self.forget(event.request.request_id)

    def add(self, request: R) -> int:
        """Inserts a new request, or one that comes back, unless it waits already; returns its index."""
        rank = self._ranks.get(request.request_id)
        if rank is None:
            rank = self._ranks[request.request_id] = self._next_rank
            self._next_rank += 1
        index = self.place(request)
        if request.request_id not in self._waiting:
            self._entries.insert(index, (request.arrival_time_s, rank, request))
            self._waiting[request.request_id] = request
        return index

    def discard(self, request: R) -> int | None:
        """Takes a request out if it waits; it keeps its place for a later `add`. Returns the index that it had."""
        if self._waiting.get(request.request_id) is not request:
            return None
        del self._waiting[request.request_id]
        index = self.place(request)
        del self._entries[index]
        return index

    def remove(self, request: R) -> None:
        """Takes out a request that waits."""
        index = self.discard(request)
        assert index is not None, f"request {request.request_id} does not wait"

    def forget(self, request_id: str) -> None:
        """Drops the place of a request that ended."""
        self._ranks.pop(request_id, None)

    def get(self, request_id: str) -> R | None:
        """The request of that id, if it waits."""
        return self._waiting.get(request_id)

    def place(self, request: R) -> int:
        """How many that wait arrived before a request: its index, if it waits. One that is not known comes last."""
        rank = self._ranks.get(request.request_id, self._next_rank)
        return bisect_left(self._entries, (request.arrival_time_s, rank), key=_sort_key)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[R]:
        return (entry[2] for entry in self._entries)

    @overload
    def __getitem__(self, index: int) -> R: ...
    @overload
    def __getitem__(self, index: slice) -> list[R]: ...
    def __getitem__(self, index: int | slice) -> R | list[R]:
        if isinstance(index, slice):
            return [entry[2] for entry in self._entries[index]]
        return self._entries[index][2]


def _sort_key(entry: tuple[float, int, R]) -> tuple[float, int]:
    return entry[:2]
