"""When requests are sent, in virtual time: exact moments."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.core.load_generator.virtual_loop import run_in_virtual_time
from tokenloom.errors import RemoteServerError
from tokenloom.load_generator.load_request import LoadRequest
from tokenloom.load_generator.traffic import Traffic, drive

Seen = list[tuple[int, float | None, float]]
"""(number, when it was due, when it was sent) in order of sending."""


def requests_at(*arrivals_s: float) -> list[LoadRequest]:
    return [LoadRequest(number, arrival_s, b"{}", 1) for number, arrival_s in enumerate(arrivals_s)]


def run(
    traffic: Traffic, requests: Sequence[LoadRequest], lasting_s: Sequence[float], stop_s: float | None = None
) -> tuple[Seen, list[int], float, float]:
    """Requests last `lasting_s` in turn. Returns (sent, numbers cancelled, when the load fell, when it was over)."""
    seen: Seen = []
    cancelled: list[int] = []

    async def main() -> tuple[float, float]:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()

        async def send(request: LoadRequest, due_s: float | None) -> bool:
            seen.append((request.number, due_s, round(loop.time() - 10.0, 9)))
            try:
                await asyncio.sleep(lasting_s[request.number % len(lasting_s)])
            except asyncio.CancelledError:
                cancelled.append(request.number)
                raise
            return True

        await asyncio.sleep(10.0)
        if stop_s is not None:
            loop.call_later(stop_s, stop.set)
        end_s = await drive(traffic, iter(requests), send, loop.time, 10.0, stop)
        return end_s, loop.time() - 10.0

    end_s, over_s = run_in_virtual_time(main())
    return seen, cancelled, end_s, over_s


def test_an_open_loop_sends_at_arrivals_however_slow_the_server_is() -> None:
    seen, _, end_s, over_s = run(Traffic("poisson"), requests_at(0.0, 0.5, 0.5, 2.0), [100.0])
    assert seen == [(0, 0.0, 0.0), (1, 0.5, 0.5), (2, 0.5, 0.5), (3, 2.0, 2.0)]
    assert (end_s, over_s) == (2.0, 102.0)


def test_a_client_that_is_late_still_says_when_requests_were_due() -> None:
    """Whatever is sent holds the client up for 3 s."""
    seen: Seen = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        late_s = 0.0

        async def send(request: LoadRequest, due_s: float | None) -> bool:
            nonlocal late_s
            seen.append((request.number, due_s, loop.time() + late_s))
            late_s += 3.0
            return True

        await drive(
            Traffic("trace"), iter(requests_at(0.0, 1.0, 2.0)), send, lambda: loop.time() + late_s, 0.0, asyncio.Event()
        )

    run_in_virtual_time(main())
    assert seen == [(0, 0.0, 0.0), (1, 1.0, 4.0), (2, 2.0, 7.0)]


def test_an_open_loop_ends_with_its_time() -> None:
    seen, _, end_s, _ = run(Traffic("gamma", duration_s=1.5), requests_at(0.0, 1.0, 1.5, 2.0), [0.25])
    assert [number for number, _, _ in seen] == [0, 1]
    assert end_s == 1.5


def test_a_closed_loop_keeps_its_concurrency_until_requests_run_out() -> None:
    seen, _, end_s, over_s = run(Traffic("closed", concurrency=2), requests_at(*[0.0] * 5), [1.0, 1.5])
    assert seen == [(0, None, 0.0), (1, None, 0.0), (2, None, 1.0), (3, None, 1.5), (4, None, 2.0)]
    # Both slots are busy until 3 s, when request 3 and request 4 end and nothing follows.
    assert (end_s, over_s) == (3.0, 3.0)


def test_a_closed_loop_ends_with_its_time() -> None:
    seen, _, end_s, over_s = run(Traffic("closed", concurrency=1, duration_s=2.5), requests_at(*[0.0] * 9), [1.0])
    assert [sent_s for _, _, sent_s in seen] == [0.0, 1.0, 2.0]
    assert (end_s, over_s) == (2.5, 3.0)


def test_everything_at_once_is_due_at_the_start() -> None:
    seen, _, end_s, _ = run(Traffic("all"), requests_at(0.0, 5.0, 9.0), [1.0])
    assert seen == [(0, 0.0, 0.0), (1, 0.0, 0.0), (2, 0.0, 0.0)]
    assert end_s == 0.0


@pytest.mark.parametrize(
    ("traffic", "num_sent"), [(Traffic("poisson"), 3), (Traffic("closed", concurrency=2), 2), (Traffic("all"), 4)]
)
def test_a_stop_gives_up_what_is_under_way(traffic: Traffic, num_sent: int) -> None:
    seen, cancelled, end_s, over_s = run(traffic, requests_at(0.0, 1.0, 2.0, 30.0), [100.0], stop_s=5.0)
    assert len(seen) == num_sent
    assert sorted(cancelled) == [number for number, _, _ in seen]
    assert over_s == 5.0
    assert end_s == (0.0 if traffic.kind == "all" else 5.0)


def test_a_stop_after_the_last_arrival_leaves_the_load_its_end() -> None:
    _, cancelled, end_s, over_s = run(Traffic("poisson"), requests_at(0.0, 1.0), [100.0], stop_s=5.0)
    assert (sorted(cancelled), end_s, over_s) == ([0, 1], 1.0, 5.0)


def test_a_bug_in_sending_is_not_swallowed() -> None:
    async def main() -> None:
        async def send(request: LoadRequest, due_s: float | None) -> bool:
            raise ZeroDivisionError

        loop = asyncio.get_running_loop()
        await drive(Traffic("all"), iter(requests_at(0.0)), send, loop.time, 0.0, asyncio.Event())

    with pytest.raises(ZeroDivisionError):
        run_in_virtual_time(main())


def test_a_closed_loop_pauses_before_it_gives_a_dead_server_up() -> None:
    sent_s: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def send(request: LoadRequest, due_s: float | None) -> bool:
            sent_s.append(round(loop.time(), 6))
            return False

        await drive(Traffic("closed", 2), iter(requests_at(*[0.0] * 1000)), send, loop.time, 0.0, asyncio.Event())

    with pytest.raises(RemoteServerError, match="12 requests in a row"):
        run_in_virtual_time(main())
    assert sent_s == [moment for moment in (0.0, 0.1, 0.3, 0.7, 1.5, 3.1) for _ in range(2)]
