"""Numbers of each waiting request in arrays, in order of arrival: ten thousand are ranked in some microseconds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from tokenloom.interfaces.scheduler import SchedulerView
from tokenloom.interfaces.scheduler_events import (
    RequestArrived,
    RequestFinished,
    RequestPreempted,
    SchedulerEvent,
    StepLanded,
)
from tokenloom.request import RequestStatus, RequestView

__all__ = ["WaitingRows", "WaitingTable", "arrival_s", "is_waiting"]

_Entry = tuple[float, int, RequestView]
_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """Requests in order of arrival, and their numbers.

    Attributes:
        entries: (arrival time, tie-break, request). Among them may be some that started and did not emit a token yet.
        columns: [num_columns, len(entries)].
    """

    entries: Sequence[_Entry]
    columns: _Numbers


@final
class WaitingTable:
    """Keeps, from events alone, numbers of the requests that wait. They must not change while a request waits.

    That a request was admitted is not told: it is taken out with the first token that it emits. Until then its status
    says that it runs.
    """

    def __init__(self, num_columns: int, numbers: Callable[[RequestView], Sequence[float]]) -> None:
        """`numbers(request)` gives one for each column."""
        self._numbers = numbers
        self._num_columns = num_columns
        self._columns = np.empty((num_columns, 16))
        self._entries: list[_Entry] = []
        self._known: dict[str, _Entry] = {}
        """The entries by request_id."""
        self._ranks: dict[str, int] = {}
        """Of all that have not ended: their order of arrival."""
        self._num_arrived = 0

    def observe(self, event: SchedulerEvent) -> None:
        """Follows what happened; for each scheduler event, after the policy learned what `numbers` depends on."""
        if isinstance(event, (RequestArrived, RequestPreempted)):
            self._insert(event.request)
        elif isinstance(event, RequestFinished):
            self._remove([event.request.request_id])
            self._ranks.pop(event.request.request_id, None)
        elif isinstance(event, StepLanded) and self._known:
            emitted = [self._known[request_id] for request_id in event.num_emitted if request_id in self._known]
            self._remove([request.request_id for _, _, request in emitted])
            for _, _, request in emitted:
                # It was preempted while its step was in flight.
                if is_waiting(request):
                    self._insert(request)

    def rows(self, requests: Sequence[RequestView], view: SchedulerView) -> WaitingRows:
        """The numbers of waiting requests. What the events have not told of is looked up, at a cost for each request.

        Args:
            requests: in order of arrival; the view's waiting ones, as a rule.
            view: of this step.
        """
        if requests is view.waiting and self._holds_all(view):
            return WaitingRows(self._entries, self._columns[:, : len(self._entries)])
        numbers = [self._numbers(request) for request in requests]
        entries = [(request.arrival_time_s, index, request) for index, request in enumerate(requests)]
        return WaitingRows(entries, np.array(numbers, np.float64).reshape(-1, self._num_columns).T)

    def _holds_all(self, view: SchedulerView) -> bool:
        """Whether those in the table that do not run are the ones that wait: they are live, so it takes a count."""
        num_started = sum(request.request_id in self._known for request in view.running)
        return len(self._entries) - num_started == len(view.waiting)

    def _insert(self, request: RequestView) -> None:
        self._remove([request.request_id])
        if request.request_id not in self._ranks:
            self._ranks[request.request_id] = self._num_arrived
            self._num_arrived += 1
        entry = (request.arrival_time_s, self._ranks[request.request_id], request)
        index = bisect_left(self._entries, entry[:2], key=_place)
        self._entries.insert(index, entry)
        self._known[request.request_id] = entry
        count = len(self._entries)
        if count > self._columns.shape[1]:
            self._columns = np.concatenate([self._columns, np.empty_like(self._columns)], axis=1)
        self._columns[:, index + 1 : count] = self._columns[:, index : count - 1]
        self._columns[:, index] = self._numbers(request)

    def _remove(self, request_ids: Iterable[str]) -> None:
        gone = [self._known.pop(request_id) for request_id in request_ids if request_id in self._known]
        if not gone:
            return
        indices = sorted(bisect_left(self._entries, entry[:2], key=_place) for entry in gone)
        left = np.delete(self._columns[:, : len(self._entries)], indices, axis=1)
        self._columns[:, : left.shape[1]] = left
        for index in reversed(indices):
            del self._entries[index]


def arrival_s(entry: _Entry) -> float:
    """When the request of an entry arrived."""
    return entry[0]


def is_waiting(request: RequestView) -> bool:
    """Whether a request of the table does not run yet."""
    return request.status is not RequestStatus.RUNNING


def _place(entry: _Entry) -> tuple[float, int]:
    return entry[:2]
