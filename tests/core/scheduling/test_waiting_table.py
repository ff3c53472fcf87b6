"""The table of those that wait: in order of arrival, from events alone, at a cost that does not grow with the queue."""

from __future__ import annotations

import numpy as np
import pytest

from tokenloom.interfaces.scheduler import SchedulerView
from tokenloom.interfaces.scheduler_events import (
    RequestAdmitted,
    RequestArrived,
    RequestFinished,
    RequestPreempted,
    StepLanded,
)
from tokenloom.request import FinishReason, Request, RequestStatus, RequestView
from tokenloom.scheduling import WaitingRows, WaitingTable, least_first
from tokenloom.testing.desk import Desk
from tokenloom.testing.stub_model import stub_request

LIMITS = Desk().limits


class Counted:
    """Numbers of requests, and how often they were asked for."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.table = WaitingTable(2, self.numbers)

    def numbers(self, request: RequestView) -> tuple[float, float]:
        self.num_calls += 1
        return request.num_tokens, request.arrival_time_s

    def arrive(self, *names: str, at: float = 0.0) -> list[Request]:
        made = [stub_request(name, range(len(name)), arrival_time_s=at) for name in names]
        for request in made:
            self.table.observe(RequestArrived(at, request))
        return made

    def rows(self, waiting: list[Request], running: list[Request]) -> WaitingRows:
        view = SchedulerView(0, 0.0, waiting, running, LIMITS)
        return self.table.rows(view.waiting, view)


def names_of(rows: WaitingRows) -> list[str]:
    return [request.request_id for request in rows.requests]


def landed(*names: str) -> StepLanded:
    return StepLanded(0.0, 0, 1.0, 1, dict.fromkeys(names, 1))


def test_rows_are_in_order_of_arrival_with_their_numbers() -> None:
    counted = Counted()
    later = counted.arrive("bbb", "a", at=2.0)
    sooner = counted.arrive("cc", at=1.0)
    rows = counted.rows([*sooner, *later], [])
    assert names_of(rows) == ["cc", "bbb", "a"]
    assert rows.columns.tolist() == [[2.0, 3.0, 1.0], [1.0, 2.0, 2.0]]


def test_a_step_asks_for_no_numbers_again() -> None:
    counted = Counted()
    waiting = counted.arrive(*(f"r{index}" for index in range(500)))
    assert counted.num_calls == 500
    for _ in range(20):
        counted.rows(waiting, [])
        counted.table.observe(RequestFinished(0.0, stub_request("unknown", [1]), FinishReason.ABORT))
        counted.table.observe(RequestFinished(0.0, waiting.pop(0), FinishReason.ABORT))
    assert names_of(counted.rows(waiting, [])) == [request.request_id for request in waiting]
    assert counted.num_calls == 500


@pytest.mark.parametrize("status", [RequestStatus.PREEMPTED, RequestStatus.SWAPPED])
def test_admitted_request_leaves_and_comes_back_to_its_place_once(status: RequestStatus) -> None:
    counted = Counted()
    first, second, third = counted.arrive("r1", "r22", "r333")
    counted.table.observe(RequestAdmitted(0.0, second))
    rows = counted.rows([first, third], [second])
    assert names_of(rows) == ["r1", "r333"]
    assert rows.columns[0].tolist() == [2.0, 4.0]
    second.status, second.output_token_ids = status, [1, 2]
    for _ in range(2):
        counted.table.observe(RequestPreempted(0.0, second))
        rows = counted.rows([first, second, third], [])
        assert names_of(rows) == ["r1", "r22", "r333"]
        assert rows.columns[0].tolist() == [2.0, 5.0, 4.0]
    assert counted.num_calls == 5, "the table answers"


def test_token_of_a_request_that_was_preempted_in_flight_updates_its_numbers() -> None:
    counted = Counted()
    (request,) = counted.arrive("r1")
    request.status = RequestStatus.PREEMPTED
    request.output_token_ids.append(5)
    counted.table.observe(landed("r1"))
    assert counted.rows([request], []).columns[0].tolist() == [3.0]


def test_other_requests_than_those_it_was_told_of_are_looked_up() -> None:
    counted = Counted()
    known = counted.arrive("r1", "r2")
    unknown = stub_request("other", range(7))
    assert names_of(counted.rows([known[0]], [])) == ["r1"]
    rows = counted.rows([*known, unknown], [])
    assert names_of(rows) == ["r1", "r2", "other"]
    assert rows.columns[0].tolist() == [2.0, 2.0, 7.0]
    assert counted.rows([], []).columns.shape == (2, 0)


@pytest.mark.parametrize("count", [0, 1, 64, 65, 512, 513, 2_000])
def test_least_first_is_a_stable_sort(count: int) -> None:
    generator = np.random.default_rng(count)
    for num_values in (1, 5, 1_000):
        keys = generator.integers(num_values, size=count).astype(np.float64)
        order = sorted(range(count), key=lambda index: keys[index])
        assert list(least_first(keys)) == order
        among = generator.integers(4, size=count) > 0
        assert list(least_first(keys, among)) == [index for index in order if among[index]]
