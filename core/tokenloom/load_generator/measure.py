"""Measures one server under one load: sends it, cuts the ramps off, sums up, and says what makes figures doubtful."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import RemoteServerError
from tokenloom.load_generator.client_watch import client_warnings
from tokenloom.load_generator.figures import Window, measured_window, summarize
from tokenloom.load_generator.http_client import LoadClient
from tokenloom.load_generator.load_request import RequestRecord
from tokenloom.load_generator.load_run import LoadRun, LoadStatus, run_load
from tokenloom.load_generator.prompts import PromptWriter, TokenDecoder, load_requests
from tokenloom.load_generator.server_probe import ServerFacts
from tokenloom.load_generator.traffic import Traffic
from tokenloom.load_generator.workloads import PlannedRequest, Workload
from tokenloom.simulation.measurements import SloTargets
from tokenloom.simulation.timed_request import TimedRequest

__all__ = ["LoadTest", "Measured", "measure"]

_LEAST_SHARE_OF_TOKENS = 0.99


@dataclass(frozen=True, slots=True)
class LoadTest:
    """A load, apart from who serves it.

    Attributes:
        workload: what is asked for.
        traffic: when.
        warmup_s: what is due earlier does not count.
        is_cut_off: whether the window ends when the load begins to fall, so that the server's emptying does not count.
        targets: of goodput.
        vocab_size: random token ids are drawn below it.
        decoder: makes text of token ids for servers that take only text; None for words.
    """

    workload: Workload
    traffic: Traffic
    warmup_s: float
    is_cut_off: bool
    targets: SloTargets
    vocab_size: int
    decoder: TokenDecoder | None = None

    def writer(self, server: ServerFacts, seed: int) -> PromptWriter:
        """What writes the prompts for a server."""
        return PromptWriter(server.prompt_form, seed, self.vocab_size, self.decoder)

    def probe_ids(self) -> list[int]:
        """Some legal token ids, for a first request."""
        prompt = PromptWriter("token_ids", 0, self.vocab_size).write(PlannedRequest(TimedRequest(0.0, 3, 1)), 0)
        assert isinstance(prompt, list)
        return prompt


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run showed: figures as plain data, and every request. `lost`: see `LoadRun`."""

    result: dict[str, Any]
    records: list[RequestRecord]
    was_interrupted: bool
    lost: RemoteServerError | None = None

    @property
    def has_completed(self) -> bool:
        """Whether any request of the whole run did."""
        return any(record.is_completed for record in self.records)

    def require_server(self) -> None:
        """Raises RemoteServerError if the server was lost during the run."""
        if self.lost is not None:
            raise self.lost


async def measure(
    test: LoadTest,
    server: ServerFacts,
    client: LoadClient,
    seed: int,
    stop: asyncio.Event | None = None,
    report: Callable[[LoadStatus], None] | None = None,
) -> Measured:
    """Sends a load once.

    Args:
        test: the load.
        server: of `probe_server`.
        client: of the same server.
        seed: of requests and prompts.
        stop, report: see `run_load`.

    Raises:
        ConfigError: nothing of the run is left to measure, or a prompt cannot be sent.
        RemoteServerError: the server was lost before there was anything to measure.
    """
    client = client.at(server.endpoint)
    requests = load_requests(test.workload.requests(seed), test.writer(server, seed), server.endpoint)
    run = await run_load(client, requests, test.traffic, stop, report)
    figures = summarize(run.records, _window(run, test), test.targets)
    client_use = run.client.to_dict(sum(len(record.chunk_times_s) for record in run.records))
    result = {
        "server": server.to_dict(),
        "traffic": {"kind": test.traffic.kind, "concurrency": test.traffic.concurrency, "seed": seed},
        "was_interrupted": run.was_interrupted,
        "lost": None if run.lost is None else str(run.lost),
        "wall_s": run.wall_s,
        "load_end_s": run.load_end_s,
        **figures,
        "client": client_use,
        "warnings": [
            *_lost_warnings(run),
            *_work_warnings(figures),
            *client_warnings(client_use, figures["send_late_s"]),
        ],
    }
    return Measured(result, run.records, run.was_interrupted, run.lost)


def _window(run: LoadRun, test: LoadTest) -> Window:
    if not any(record.is_completed for record in run.records):
        return Window(0.0, run.wall_s)  # there is nothing to measure, but failures to tell
    if run.was_interrupted:
        return measured_window(run.wall_s, test.warmup_s)
    if run.lost is not None and run.load_end_s <= test.warmup_s:
        raise run.lost
    end_s = run.load_end_s if test.is_cut_off or run.lost is not None else max(record.end_s for record in run.records)
    return measured_window(end_s, test.warmup_s)


def _lost_warnings(run: LoadRun) -> Sequence[str]:
    if run.lost is None:
        return []
    return [
        f"the server was lost after {run.load_end_s:.2f} s, and these figures are partial: they are of the time before"
    ]


def _work_warnings(figures: dict[str, Any]) -> Sequence[str]:
    """Signs that the server did other work than it was asked for."""
    warnings: list[str] = []
    tokens = figures["tokens"]
    num_output, num_asked = tokens["num_output_tokens"], tokens["num_asked_tokens"]
    if num_output < _LEAST_SHARE_OF_TOKENS * num_asked:
        warnings.append(
            f"the server generated {num_output} of the {num_asked} output tokens that were asked for; where it knows "
            "the field, extra_body='{\"ignore_eos\": true}' makes it generate all of them"
        )
    if tokens["counted_by"] not in ("usage", None):
        warnings.append("the server did not count its tokens; chunks were counted instead, which may hold several each")
    if figures["num_failed"]:
        kinds = ", ".join(f"{kind}: {found['count']}" for kind, found in figures["failures"].items())
        warnings.append(f"{figures['num_failed']} requests failed ({kinds})")
    return warnings
