"""WaitingOrder: order of arrival, kept through preemption, readable as any sequence, and the same told twice."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tokenloom.batch import PreemptMode
from tokenloom.interfaces.scheduler_events import (
    RequestAdmitted,
    RequestArrived,
    RequestFinished,
    RequestPreempted,
    StepLanded,
)
from tokenloom.request import FinishReason, Request, RequestStatus, RequestView
from tokenloom.scheduling import WaitingOrder
from tokenloom.testing.stub_model import stub_request


def queue_of(*names: str) -> WaitingOrder[Request]:
    queue = WaitingOrder[Request]()
    for name in names:
        queue.add(stub_request(name, [1]))
    return queue


def names(queue: Sequence[RequestView]) -> list[str]:
    return [request.request_id for request in queue]


def test_queue_keeps_the_order_of_insertion_among_equal_arrival_times() -> None:
    assert names(queue_of("b", "a", "c")) == ["b", "a", "c"]


def test_earlier_arrival_comes_first_whenever_it_is_added() -> None:
    queue = WaitingOrder[Request]()
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


def test_what_is_added_or_discarded_again_changes_nothing() -> None:
    queue = queue_of("a", "b", "c")
    second = queue[1]
    assert [queue.add(second), queue.place(second)] == [1, 1]
    assert names(queue) == ["a", "b", "c"]
    assert [queue.discard(second), queue.discard(second)] == [1, None]
    assert names(queue) == ["a", "c"]
    assert queue.discard(stub_request("c", [1])) is None, "another request of that id"
    assert queue.get("b") is None
    assert queue.get("c") is queue[1]


def test_place_counts_who_arrived_before() -> None:
    queue = queue_of("a", "b", "c")
    second = queue[1]
    queue.remove(second)
    assert queue.place(second) == 1, "it would come back there"
    assert queue.place(stub_request("unknown", [1])) == 2
    assert queue.place(stub_request("unknown", [1], arrival_time_s=-1.0)) == 0


@pytest.mark.parametrize("status", [RequestStatus.PREEMPTED, RequestStatus.SWAPPED])
def test_events_keep_those_who_wait_in_whatever_state(status: RequestStatus) -> None:
    """Each event twice, though only preemptions are told again."""
    queue, requests = WaitingOrder[RequestView](), [stub_request(name, [1]) for name in "abc"]
    first = requests[0]
    mode = PreemptMode.SWAP if status is RequestStatus.SWAPPED else PreemptMode.RECOMPUTE
    for event, expected in [
        *[(RequestArrived(0.0, request), None) for request in requests],
        (RequestAdmitted(0.0, first), "bc"),
        (StepLanded(0.0, 0, 1.0, 1, {"a": 1, "b": 1}), "bc"),
        (RequestPreempted(0.0, first, mode, 4), "abc"),
        (StepLanded(0.0, 1, 1.0, 1, {"a": 1}), "abc"),
        (RequestAdmitted(0.0, first), "bc"),
        (RequestPreempted(0.0, first, mode, 0), "abc"),
        (RequestFinished(0.0, requests[1], FinishReason.ABORT), "ac"),
        (RequestAdmitted(0.0, requests[2]), "a"),
        (RequestFinished(0.0, requests[2], FinishReason.STOP), "a"),
    ]:
        if isinstance(event, RequestPreempted):
            first.status = status
        queue.observe(event)
        queue.observe(event)
        assert expected is None or names(queue) == list(expected), event
    queue.observe(RequestArrived(0.0, requests[1]))
    assert names(queue) == ["a", "b"], "an id that ended is new"
