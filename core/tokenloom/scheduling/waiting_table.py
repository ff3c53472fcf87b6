"""Numbers of each waiting request in arrays, in order of arrival: ten thousand are ranked in some microseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from tokenloom.interfaces.scheduler import SchedulerView
from tokenloom.interfaces.scheduler_events import (
    RequestAdmitted,
    RequestArrived,
    RequestFinished,
    RequestPreempted,
    SchedulerEvent,
    StepLanded,
)
from tokenloom.request import RequestView
from tokenloom.scheduling.waiting_order import WaitingOrder

__all__ = ["WaitingRows", "WaitingTable"]

_Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WaitingRows:
    """Requests in order of arrival, and their numbers: [num_columns, len(requests)]. Valid until the next event."""

    requests: Sequence[RequestView]
    columns: _Numbers


@final
class WaitingTable:
    """Keeps, from events alone, numbers of the requests that wait. They must not change while a request waits.

    For policies that rank many requests by few numbers; see `least_first`, which sorts no more than is read.

        self._waiting = WaitingTable(1, lambda request: (float(request.num_tokens),))       # in __init__
        self._waiting.observe(event)                                                        # in observe
        rows = self._waiting.rows(view.waiting, view)                                       # in order or sequence
        for index in least_first(rows.columns[0]):
            yield rows.requests[index]
    """

    def __init__(self, num_columns: int, numbers: Callable[[RequestView], Sequence[float]]) -> None:
        """`numbers(request)` gives one for each column."""
        self._numbers = numbers
        self._order = WaitingOrder[RequestView]()
        # Columns of requests [: len(order)], then room for more.
        self._columns: _Numbers = np.empty((num_columns, 16))

    def observe(self, event: SchedulerEvent) -> None:
        """Follows what happened; for each scheduler event, after the policy learned what `numbers` depends on."""
        if isinstance(event, (RequestArrived, RequestPreempted)):
            self._put(event.request)
        elif isinstance(event, (RequestAdmitted, RequestFinished)):
            self._take(event.request)
            if isinstance(event, RequestFinished):
                self._order.forget(event.request.request_id)
        elif isinstance(event, StepLanded):
            for request_id in event.num_emitted:
                request = self._order.get(request_id)
                # It was preempted while its step was in flight.
                if request is not None:
                    self._put(request)

    def rows(self, requests: Sequence[RequestView], view: SchedulerView) -> WaitingRows:
        """The numbers of waiting requests. What the events have not told of is looked up, at a cost for each request.

        Args:
            requests: in order of arrival; the view's waiting ones, as a rule.
            view: of this step.
        """
        count = len(self._order)
        if requests is view.waiting and len(requests) == count:
            return WaitingRows(self._order, self._columns[:, :count])
        numbers = [self._numbers(request) for request in requests]
        return WaitingRows(requests, np.array(numbers, np.float64).reshape(-1, len(self._columns)).T)

    def _put(self, request: RequestView) -> None:
        """Takes up the numbers of a request that waits, or what they are now."""
        num_before = len(self._order)
        index, count = self._order.add(request), len(self._order)
        if count > num_before:
            if count > self._columns.shape[1]:
                self._columns = np.concatenate([self._columns, np.empty_like(self._columns)], axis=1)
            self._columns[:, index + 1 : count] = self._columns[:, index:num_before]
        self._columns[:, index] = self._numbers(request)

    def _take(self, request: RequestView) -> None:
        index = self._order.discard(request)
        if index is not None:
            count = len(self._order)
            self._columns[:, index:count] = self._columns[:, index + 1 : count + 1]
