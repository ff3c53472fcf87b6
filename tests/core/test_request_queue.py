"""RequestQueue: order of arrival, kept through preemption, readable as any sequence."""

from __future__ import annotations

import pytest

from tokenloom.request_queue import RequestQueue
from tokenloom.testing.stub_model import stub_request


def queue_of(*names: str) -> RequestQueue:
    queue = RequestQueue()
    for name in names:
        queue.add(stub_request(name, [1]))
    return queue


def names(queue: RequestQueue) -> list[str]:
    return [request.request_id for request in queue]


def test_queue_keeps_the_order_of_insertion_among_equal_arrival_times() -> None:
    assert names(queue_of("b", "a", "c")) == ["b", "a", "c"]


def test_earlier_arrival_comes_first_whenever_it_is_added() -> None:
    queue = RequestQueue()
    for name, arrival_s in (("late", 2.0), ("early", 1.0), ("later", 3.0)):
        queue.add(stub_request(name, [1], arrival_time_s=arrival_s))
    assert names(queue) == ["early", "late", "later"]


def test_removed_request_comes_back_to_its_place() -> None:
    queue = queue_of("a", "b", "c")
    first, second = queue[0], queue[1]
    queue.remove(second)
    queue.remove(first)
    queue.add(second)
    queue.add(first)
    assert names(queue) == ["a", "b", "c"]


def test_forgotten_request_queues_at_the_end() -> None:
    queue = queue_of("a", "b")
    first = queue[0]
    queue.remove(first)
    queue.forget("a")
    queue.forget("unknown")
    queue.add(first)
    assert names(queue) == ["b", "a"]


def test_queue_reads_like_a_sequence() -> None:
    queue = queue_of("a", "b", "c")
    assert len(queue) == 3
    assert queue[-1].request_id == "c"
    assert queue[1] in queue
    assert stub_request("a", [1]) not in queue
    assert [request.request_id for request in queue[:2]] == ["a", "b"]
    assert [request.request_id for request in queue[1:5]] == ["b", "c"]
    assert [request.request_id for request in reversed(queue)] == ["c", "b", "a"]
    with pytest.raises(IndexError):
        queue[3]


def test_removal_of_a_request_that_does_not_wait_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="does not wait"):
        queue_of("a").remove(stub_request("a", [1]))
