"""When requests are sent: at their arrivals whatever the server does, or a fixed number at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Literal, final

from tokenloom.errors import RemoteServerError
from tokenloom.load_generator.load_request import LoadRequest

__all__ = ["Send", "Traffic", "TrafficKind", "drive"]

TrafficKind = Literal["closed", "poisson", "gamma", "trace", "all"]
Send = Callable[[LoadRequest, float | None], Coroutine[Any, Any, bool]]
"""Sends one request that was due at that time (seconds from the start; None for now), and returns when it has ended:
whether the server could be reached."""

_EARLY_S = 1e-6
"""Some event loops round timers to milliseconds and fire early; nothing is sent earlier than by this."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
"""Of a closed loop's slot whose server cannot be reached: without one, it would fail thousands of times a second."""
_MISSES_PER_SLOT = 6
"""So many in a row, in every slot, take some 3 s: the server is gone."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The pattern of a load.

    Attributes:
        kind: closed (a request follows another one's end), all (everything at once), or poisson, gamma and trace, which
            send at the arrivals that the requests bear.
        concurrency: requests at a time, of a closed loop; else None.
        duration_s: nothing is sent later than this; None sends everything.
    """

    kind: TrafficKind
    concurrency: int | None = None
    duration_s: float | None = None


async def drive(
    traffic: Traffic,
    requests: Iterator[LoadRequest],
    send: Send,
    clock: Callable[[], float],
    start_s: float,
    stop: asyncio.Event,
) -> float:
    """Sends requests until there are no more or the time is over, and waits for those under way.

    Args:
        traffic: the pattern.
        requests: in order of arrival.
        send: sends one.
        clock, start_s: seconds, and when the load starts on that clock.
        stop: once it is set, nothing more is sent, and what is under way is cancelled.

    Returns:
        When the load began to fall, seconds from the start: at the last arrival in an open loop; when a slot stayed
        empty for want of requests in a closed one; at 0 if everything was sent at once.

    Raises:
        RemoteServerError: in a closed loop, the server cannot be reached any more.
    """
    sender = _Sender(requests, send, clock, start_s, traffic.duration_s)
    sending = asyncio.create_task(sender.run(traffic))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({sending, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        was_cancelled = sending.cancel()
        await asyncio.wait({sending, stopped})
    if was_cancelled and sending.cancelled():
        return min(sender.end_s, clock() - start_s)
    sending.result()
    return sender.end_s


@final
class _Sender:
    """Sends in one pattern. `end_s` is when the load began to fall."""

    def __init__(
        self,
        requests: Iterator[LoadRequest],
        send: Send,
        clock: Callable[[], float],
        start_s: float,
        duration_s: float | None,
    ) -> None:
        self._requests = requests
        self._send = send
        self._clock, self._start_s = clock, start_s
        self._duration_s = float("inf") if duration_s is None else duration_s
        self._misses_in_a_row = 0
        self.end_s = float("inf")

    async def run(self, traffic: Traffic) -> None:
        """Ends when all requests have ended."""
        try:
            await self._run(traffic)
        except ExceptionGroup as errors:
            # Requests fail in their records; what is raised, such as a prompt of the wrong form, is meant for the user.
            raise errors.exceptions[0] from None

    async def _run(self, traffic: Traffic) -> None:
        async with asyncio.TaskGroup() as group:
            if traffic.kind == "all":
                self.end_s = 0.0
                for request in self._requests:
                    group.create_task(self._send(request, 0.0))
            elif traffic.kind == "closed":
                assert traffic.concurrency is not None, "a closed loop needs a concurrency"
                for _ in range(traffic.concurrency):
                    group.create_task(self._one_after_the_other(_MISSES_PER_SLOT * traffic.concurrency))
            else:
                await self._at_arrivals(group)

    async def _at_arrivals(self, group: asyncio.TaskGroup) -> None:
        last_s = 0.0
        # The next request is made ready before the wait for its arrival, so that its making does not delay it.
        for request in self._requests:
            if request.arrival_s >= self._duration_s:
                last_s = self._duration_s
                break
            # Behind schedule, the other tasks still get their turn.
            await asyncio.sleep(max(0.0, request.arrival_s - self._now_s()))
            while self._now_s() < request.arrival_s - _EARLY_S:
                await asyncio.sleep(0)
            last_s = request.arrival_s
            group.create_task(self._send(request, request.arrival_s))
        self.end_s = last_s

    async def _one_after_the_other(self, most_misses: int) -> None:
        pause_s = _FIRST_PAUSE_S
        for request in self._requests:
            if self._now_s() >= self._duration_s:
                break
            if await self._send(request, None):
                self._misses_in_a_row, pause_s = 0, _FIRST_PAUSE_S
                continue
            self._misses_in_a_row += 1
            if self._misses_in_a_row >= most_misses:
                raise RemoteServerError(
                    f"the server cannot be reached any more: {self._misses_in_a_row} requests in a row found no "
                    "connection; look at its log"
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self.end_s = min(self.end_s, self._now_s(), self._duration_s)

    def _now_s(self) -> float:
        return self._clock() - self._start_s
