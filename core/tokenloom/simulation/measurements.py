"""What a replay measures on the way: latencies of requests, and how full the engine is over time."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from tokenloom.bench.latency import percentiles
from tokenloom.engine_output import EngineOutput
from tokenloom.errors import OverloadedError, TokenloomError
from tokenloom.request import FinishReason

__all__ = ["Completed", "LatencyRecorder", "Occupancy", "Rejections", "SloTargets"]


@dataclass(frozen=True, slots=True)
class SloTargets:
    """Targets that requests are measured against, seconds."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Completed:
    """A request that came to its end: its latencies (no TPOT with one token), and whether both targets were met."""

    ttft_s: float
    tpot_s: float | None
    is_in_time: bool


@dataclass(slots=True)
class _Progress:
    """Of one request: when tokens landed first and last, and how many there are."""

    first_s: float
    last_s: float
    num_tokens: int


@final
class LatencyRecorder:
    """Takes an engine's outputs and keeps numbers only, for millions of tokens. Definitions as in `RequestMetrics`."""

    def __init__(self, targets: SloTargets) -> None:
        self._targets = targets
        self._relaxed: dict[str, float] = {}
        self._open: dict[str, _Progress] = {}
        self._ttft_s, self._tpot_s, self._itl_s, self._e2e_s = (array("d") for _ in range(4))
        self._chunks = array("d")
        self.num_completed = 0
        self.num_failed = 0
        self.num_in_time = 0
        self.last_finish_s = 0.0

    @property
    def num_ended(self) -> int:
        """Requests that have ended, well or not."""
        return self.num_completed + self.num_failed

    def relax(self, request_id: str, factor: float) -> None:
        """Makes the targets of a request that is to come so many times as long."""
        self._relaxed[request_id] = factor

    def take(self, output: EngineOutput) -> Completed | None:
        """Takes the news of one request; returns its latencies if it completed."""
        name, count = output.request_id, len(output.token_ids)
        progress = self._open.get(name)
        if count:
            self._chunks.append(count)
            if progress is None:
                progress = self._open[name] = _Progress(output.landed_s, output.landed_s, count)
            else:
                self._itl_s.append(output.landed_s - progress.last_s)
                progress.last_s = output.landed_s
                progress.num_tokens += count
        if output.finish_reason is None:
            return None
        self._open.pop(name, None)
        return self._end(output, progress, self._relaxed.pop(name, 1.0))

    def _end(self, output: EngineOutput, progress: _Progress | None, factor: float) -> Completed | None:
        self.last_finish_s = max(self.last_finish_s, output.landed_s)
        if output.finish_reason is FinishReason.ERROR or progress is None:
            self.num_failed += 1
            return None
        self.num_completed += 1
        arrival_s, num_later = output.times.arrival_s, progress.num_tokens - 1
        ttft_s, e2e_s = progress.first_s - arrival_s, output.landed_s - arrival_s
        tpot_s = (e2e_s - ttft_s) / num_later if num_later else 0.0
        self._ttft_s.append(ttft_s)
        self._e2e_s.append(e2e_s)
        if num_later:
            self._tpot_s.append(tpot_s)
        is_in_time = ttft_s <= factor * self._targets.ttft_s and tpot_s <= factor * self._targets.tpot_s
        self.num_in_time += is_in_time
        return Completed(ttft_s, tpot_s if num_later else None, is_in_time)

    def summary(self) -> dict[str, dict[str, float | int | None]]:
        """Percentiles, as `bench.latency.latency_summary` has them."""
        return {
            "ttft_s": percentiles(self._ttft_s),
            "tpot_s": percentiles(self._tpot_s),
            "itl_s": percentiles(self._itl_s),
            "e2e_s": percentiles(self._e2e_s),
            "tokens_per_chunk": percentiles(self._chunks),
        }

    def samples(self) -> dict[str, array[float]]:
        """TTFT and TPOT of every request that completed, seconds, for plots."""
        return {"ttft_s": self._ttft_s, "tpot_s": self._tpot_s}


@final
@dataclass(slots=True)
class Rejections:
    """Requests that the engine refused: those that can never run, and `num_overloaded` that found the queue full."""

    num_total: int = 0
    num_overloaded: int = 0
    first: str | None = None

    def take(self, request_id: str, error: TokenloomError) -> None:
        """Counts one, with its reason."""
        self.num_total += 1
        self.num_overloaded += isinstance(error, OverloadedError)
        if self.first is None:
            self.first = f"{request_id}: {error}"


@final
class Occupancy:
    """Means over busy time, and peaks, of what is in use when a step ends."""

    def __init__(self, num_usable_blocks: int) -> None:
        self._num_usable_blocks = num_usable_blocks
        self._busy_s = 0.0
        self._sums = {"kv": 0.0, "running": 0.0, "waiting": 0.0}
        self._peaks = {"kv": 0.0, "running": 0.0, "waiting": 0.0}

    def take(self, duration_s: float, kv_usage: Mapping[str, int], num_running: int, num_waiting: int) -> None:
        """Takes one step: how long it was, and what was in use."""
        now = {
            "kv": kv_usage["active"] / self._num_usable_blocks,
            "running": float(num_running),
            "waiting": float(num_waiting),
        }
        self._busy_s += duration_s
        for name, value in now.items():
            self._sums[name] += value * duration_s
            self._peaks[name] = max(self._peaks[name], value)

    def summary(self) -> dict[str, Any]:
        """busy_s, and mean and peak of kv (share of the usable blocks that requests hold), running and waiting."""
        mean = {name: total / self._busy_s if self._busy_s else 0.0 for name, total in self._sums.items()}
        return {
            "busy_s": self._busy_s,
            **{f"{name}_mean": value for name, value in mean.items()},
            **{f"{name}_peak": value for name, value in self._peaks.items()},
        }
