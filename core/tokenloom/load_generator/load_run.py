"""Runs one load against one endpoint and collects what happened."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import final

from tokenloom.errors import RemoteServerError
from tokenloom.load_generator.client_watch import ClientUse, ClientWatch
from tokenloom.load_generator.http_client import LoadClient
from tokenloom.load_generator.load_request import LoadRequest, Outcome, RequestRecord
from tokenloom.load_generator.stream_recorder import StreamRecorder
from tokenloom.load_generator.traffic import Traffic, drive

__all__ = ["LoadRun", "LoadStatus", "run_load"]

_REPORT_EVERY_S = 0.5
_RECENT = 100


@dataclass(frozen=True, slots=True)
class LoadRun:
    """What happened under one load.

    Attributes:
        records: of every request that was sent, by number.
        load_end_s: when the load began to fall, see `traffic.drive`; seconds from the start, as all times.
        wall_s: when the last request had ended.
        client: what the load generator itself took.
        was_interrupted: whether it was ended before its time.
        lost: why a closed loop gave up: the server could not be reached any more. `load_end_s` is then the end of the
            last request that still reached it.
    """

    records: list[RequestRecord]
    load_end_s: float
    wall_s: float
    client: ClientUse
    was_interrupted: bool
    lost: RemoteServerError | None = None


@dataclass(frozen=True, slots=True)
class LoadStatus:
    """How far a load is.

    Attributes:
        elapsed_s: seconds since its start.
        num_sent, num_completed, num_refused, num_failed: requests.
        num_tokens: output tokens so far.
        recent_ttft_s: median time to first token of the last requests that completed.
    """

    elapsed_s: float
    num_sent: int
    num_completed: int
    num_refused: int
    num_failed: int
    num_tokens: int
    recent_ttft_s: float | None

    @property
    def num_running(self) -> int:
        """Requests under way."""
        return self.num_sent - self.num_completed - self.num_refused - self.num_failed


async def run_load(
    client: LoadClient,
    requests: Iterable[LoadRequest],
    traffic: Traffic,
    stop: asyncio.Event | None = None,
    report: Callable[[LoadStatus], None] | None = None,
) -> LoadRun:
    """Sends a load and reads every stream to its end.

    Args:
        client: sends and reads.
        requests: in order of arrival.
        traffic: when to send them.
        stop: ends the load early; what is under way is given up.
        report: told twice a second how it goes.
    """
    stop = asyncio.Event() if stop is None else stop
    # A burst must not wait for its last request to be made.
    ready = iter(list(requests)) if traffic.kind == "all" else iter(requests)
    ledger, watch = _Ledger(client), ClientWatch()
    reporting = asyncio.create_task(ledger.report_to(report)) if report is not None else None
    lost: RemoteServerError | None = None
    watch.start()
    try:
        load_end_s = await drive(traffic, ready, ledger.send, time.perf_counter, ledger.start_s, stop)
    except RemoteServerError as error:
        # What was measured until then is not lost.
        lost, load_end_s = error, ledger.last_reached_s()
    finally:
        if reporting is not None:
            reporting.cancel()
            await asyncio.wait({reporting})
    records = sorted(ledger.records, key=lambda record: record.number)
    wall_s = time.perf_counter() - ledger.start_s
    return LoadRun(records, load_end_s, wall_s, watch.stop(), stop.is_set(), lost)


@final
class _Ledger:
    """Counts and keeps what one load brings. It starts now."""

    def __init__(self, client: LoadClient) -> None:
        self._client = client
        self.start_s = time.perf_counter()
        self.records: list[RequestRecord] = []
        self._running: set[StreamRecorder] = set()
        self._num_tokens = 0
        self._outcomes: Counter[Outcome] = Counter()

    async def send(self, request: LoadRequest, due_s: float | None) -> bool:
        sent_s = time.perf_counter() - self.start_s
        recorder = StreamRecorder(request, sent_s if due_s is None else due_s, sent_s)
        self._running.add(recorder)
        is_unfinished = True
        try:
            await self._client.stream(request.body, recorder, self.start_s)
            is_unfinished = False
        finally:
            self._running.remove(recorder)
            record = recorder.record(is_unfinished)
            self.records.append(record)
            self._outcomes[record.outcome] += 1
            self._num_tokens += record.num_output_tokens
        return record.failure != "connection"

    def last_reached_s(self) -> float:
        """When the last request ended that had found the server; 0 if none had."""
        ended = (record for record in self.records if record.outcome is not Outcome.UNFINISHED)
        return max((record.end_s for record in ended if record.failure != "connection"), default=0.0)

    async def report_to(self, report: Callable[[LoadStatus], None]) -> None:
        while True:
            await asyncio.sleep(_REPORT_EVERY_S)
            recent = sorted(r.ttft_s for r in self.records[-_RECENT:] if r.is_completed and r.ttft_s is not None)
            report(
                LoadStatus(
                    elapsed_s=time.perf_counter() - self.start_s,
                    num_sent=len(self.records) + len(self._running),
                    num_completed=self._outcomes[Outcome.COMPLETED],
                    num_refused=self._outcomes[Outcome.REFUSED],
                    num_failed=self._outcomes[Outcome.FAILED],
                    num_tokens=self._num_tokens + sum(recorder.num_tokens for recorder in self._running),
                    recent_ttft_s=recent[len(recent) // 2] if recent else None,
                )
            )
