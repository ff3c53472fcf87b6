"""Watches the client itself: the CPU time that it takes, and how late its event loop runs."""

from __future__ import annotations

import asyncio
import time
from array import array
from dataclasses import dataclass
from typing import Any, final

from tokenloom.bench.latency import percentiles

__all__ = ["ClientUse", "ClientWatch", "client_warnings"]

_TICK_S = 0.02
_MOST_CPU_SHARE = 0.8
_MOST_LAG_S = 0.01


@dataclass(frozen=True, slots=True)
class ClientUse:
    """What the load generator itself took.

    Attributes:
        cpu_s: CPU time of the thread that sends and reads.
        wall_s: how long it was watched.
        lag_s: how late each of many timers fired, seconds.
    """

    cpu_s: float
    wall_s: float
    lag_s: array[float]

    def to_dict(self, num_chunks: int) -> dict[str, Any]:
        """Plain data for a result; `num_chunks` were read meanwhile."""
        return {
            "cpu_s": self.cpu_s,
            "cpu_share": self.cpu_s / self.wall_s if self.wall_s else 0.0,
            "cpu_us_per_chunk": 1e6 * self.cpu_s / num_chunks if num_chunks else None,
            "loop_lag_s": percentiles(self.lag_s),
        }


@final
class ClientWatch:
    """Ticks within the running event loop from `start` to `stop`."""

    def __init__(self) -> None:
        self._lag_s = array("d")
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._start_cpu_s = self._start_s = 0.0

    def start(self) -> None:
        """Begins; in the thread of the event loop."""
        self._start_cpu_s, self._start_s = time.thread_time(), time.perf_counter()
        self._schedule()

    def stop(self) -> ClientUse:
        """Ends; in the same thread."""
        if self._timer is not None:
            self._timer.cancel()
        wall_s = time.perf_counter() - self._start_s
        return ClientUse(time.thread_time() - self._start_cpu_s, wall_s, self._lag_s)

    def _schedule(self) -> None:
        self._due_s = time.perf_counter() + _TICK_S
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self._lag_s.append(max(0.0, time.perf_counter() - self._due_s))
        self._schedule()


def client_warnings(client: dict[str, Any], send_late_s: dict[str, Any]) -> list[str]:
    """What makes figures doubtful because the client was too slow.

    Args:
        client: `ClientUse.to_dict`.
        send_late_s: percentiles of how late requests were sent.
    """
    warnings: list[str] = []
    if client["cpu_share"] > _MOST_CPU_SHARE:
        warnings.append(
            f"the client used {client['cpu_share']:.0%} of a core: it may have been the bottleneck, not the server"
        )
    lag_s = client["loop_lag_s"]["p99"]
    if lag_s is not None and lag_s > _MOST_LAG_S:
        warnings.append(
            f"the client's event loop ran up to {1000 * lag_s:.0f} ms late (p99): latencies may be too long by as much;"
            " give the client a core of its own"
        )
    late_s = send_late_s["p99"]
    if late_s is not None and late_s > _MOST_LAG_S:
        warnings.append(
            f"requests were sent up to {1000 * late_s:.0f} ms late (p99); latencies count from when they were due"
        )
    return warnings
