"""Sorting that costs only as much as is read: a step serves some dozens of perhaps ten thousand waiting requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop

from tokenloom.request import RequestView

__all__ = ["least_first"]


def least_first(requests: Iterable[RequestView], rank: Callable[[RequestView], float]) -> Iterator[RequestView]:
    """Yields requests from the least rank to the largest; of equal ones the first comes first.

    Nothing is computed before the first is asked for: O(n) for that one, O(log n) for each further one. A rank is one
    number because tuples would take twice as long to compare.
    """
    known = list(requests)
    heap = list(zip(map(rank, known), range(len(known)), known, strict=True))
    heapify(heap)
    while heap:
        yield heappop(heap)[2]
