"""`tokenloom bench compare`: do two servers say the same, and which one is faster by how much?"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import click
from pydantic import Field

from tokenloom.bench.plot_file import check_plotting
from tokenloom.bench.provenance import client_provenance
from tokenloom.cli.config_arguments import overrides_argument
from tokenloom.cli.load_report import load_report
from tokenloom.cli.load_tables import print_agreement, print_ratios, print_server, print_warnings
from tokenloom.cli.load_test_settings import LoadTestSettings, endpoint_of, load_test_of, wanted_form
from tokenloom.cli.own_keys import read_own_keys
from tokenloom.errors import TokenloomError
from tokenloom.load_generator.agreement import Agreement, ask_greedily, summarize_agreement
from tokenloom.load_generator.comparison import ratios
from tokenloom.load_generator.event_loop import run_with_stop
from tokenloom.load_generator.http_client import LoadClient, open_session
from tokenloom.load_generator.load_request import RequestRecord
from tokenloom.load_generator.measure import LoadTest, Measured, measure
from tokenloom.load_generator.plots import draw_ratios
from tokenloom.load_generator.result_file import write_results
from tokenloom.load_generator.server_probe import ServerFacts, probe_server
from tokenloom.output_files import check_output_files

__all__ = ["BenchCompareSettings", "compare"]

_COMMAND = "tokenloom bench compare"
_INTERRUPTED = 130
_MOST_UNEQUAL_TOKENS = 0.02


class BenchCompareSettings(LoadTestSettings):
    """Keys of `tokenloom bench compare`."""

    a: str = Field(description="The one server, http://localhost:8000; /v1 joins a URL without a path.")
    b: str = Field(description="The other server.")
    a_model: str | None = Field(default=None, description="Name of the model of A; null: the first that it lists.")
    b_model: str | None = Field(default=None, description="Name of the model of B; null: the first that it lists.")
    a_api_key: str | None = Field(default=None, description="Bearer token of A; env:NAME takes it from a variable.")
    b_api_key: str | None = Field(default=None, description="Bearer token of B; env:NAME takes it from a variable.")
    repetitions: Annotated[int, Field(ge=1)] = Field(default=3, description="Pairs of runs: A and B, then B and A.")
    agreement_prompts: Annotated[int, Field(ge=0)] = Field(
        default=8, description="Prompts whose greedy answers are compared first; 0 compares none."
    )
    agreement_tokens: Annotated[int, Field(ge=1)] = Field(default=32, description="Length of those answers.")


@dataclass(slots=True)
class _Comparison:
    """What has been found so far."""

    agreement: Agreement | None = None
    pairs: list[tuple[Measured, Measured]] = field(default_factory=list)
    was_interrupted: bool = False


@click.command()
@overrides_argument
def compare(overrides: tuple[str, ...]) -> None:
    """Compare two servers: their answers, then their speed in turn.

    For example: tokenloom bench compare a=http://localhost:8000 b=http://localhost:8001 concurrency=16 repetitions=3

    First it asks both the same and says how far greedy answers agree. Then it measures A, B, B, A, A, ... under the
    same load and reports A / B of each pair.
    """
    settings = read_own_keys(overrides, BenchCompareSettings, _COMMAND)
    test = load_test_of(settings)
    check_output_files({"workload": settings.workload_file}, {"output": settings.output, "plot": settings.plot})
    if settings.plot is not None:
        check_plotting(Path(settings.plot))
    found = _Comparison()
    try:
        run_with_stop(lambda stop: _compare(settings, test, found, stop))
    except TokenloomError:
        # The pairs before are not lost.
        if found.pairs:
            _report(found, settings)
        raise
    if not found.pairs:
        raise KeyboardInterrupt
    _report(found, settings)
    _exit_by(found)


async def _compare(settings: BenchCompareSettings, test: LoadTest, found: _Comparison, stop: asyncio.Event) -> None:
    """Fills `found`."""
    endpoints = {
        "A": endpoint_of(settings, "a", settings.a, settings.a_model, settings.a_api_key),
        "B": endpoint_of(settings, "b", settings.b, settings.b_model, settings.b_api_key),
    }
    form = wanted_form(settings)
    async with open_session() as session:
        clients = {name: LoadClient(endpoint, session, time.perf_counter) for name, endpoint in endpoints.items()}
        servers = {name: await probe_server(client, form, test.probe_ids()) for name, client in clients.items()}
        for name, server in servers.items():
            print_server(server, test, name)
        if settings.agreement_prompts:
            found.agreement = await _agree(settings, test, servers, clients)
            print_agreement(found.agreement)
        for number in range(settings.repetitions):
            measured: dict[str, Measured] = {}
            # Whoever comes second always would have the warmer, or the hotter, machine.
            for name in ("A", "B") if number % 2 == 0 else ("B", "A"):
                with load_report(f"{name} {number + 1}/{settings.repetitions}", test) as report:
                    # Another seed for each pair: prompts that were seen before lie in the server's prefix cache.
                    seed = settings.workload_seed + number
                    measured[name] = await measure(test, servers[name], clients[name], seed, stop, report)
                measured[name].require_server()
                if stop.is_set():
                    found.was_interrupted = True
                    return
            found.pairs.append((measured["A"], measured["B"]))


async def _agree(
    settings: BenchCompareSettings, test: LoadTest, servers: dict[str, ServerFacts], clients: dict[str, LoadClient]
) -> Agreement:
    answers = {}
    for name, server in servers.items():
        writer = test.writer(server, settings.workload_seed)
        planned = itertools.islice(test.workload.requests(settings.workload_seed), settings.agreement_prompts)
        prompts = [writer.write(request, number) for number, request in enumerate(planned)]
        answers[name] = await ask_greedily(clients[name].at(server.endpoint), prompts, settings.agreement_tokens)
    return summarize_agreement(answers["A"], answers["B"])


def _report(found: _Comparison, settings: BenchCompareSettings) -> None:
    of_pairs = [(a.result, b.result) for a, b in found.pairs]
    compared = ratios(of_pairs)
    print_ratios(compared)
    runs = {f"{name} {n + 1}": run for n, pair in enumerate(found.pairs) for name, run in zip("AB", pair, strict=True)}
    print_warnings({name: run.result for name, run in runs.items()})
    unequal = _unequal_work(found.pairs)
    if unequal is not None:
        click.secho(f"WARNING: {unequal}", fg="red", bold=True, err=True)
    if settings.output is not None:
        summary = {
            "ratios": {ratio.figure: ratio.to_dict() for ratio in compared},
            "agreement": None if found.agreement is None else found.agreement.to_dict(),
            "unequal_work": unequal,
            "was_interrupted": found.was_interrupted,
            "settings": settings.model_dump(exclude={"a_api_key", "b_api_key"}),
            "provenance": client_provenance(),
        }
        write_results(Path(settings.output), {"comparison": (summary, ()), **_with_records(runs)})
    if settings.plot is not None:
        draw_ratios(compared, Path(settings.plot))


def _exit_by(found: _Comparison) -> None:
    if found.was_interrupted:
        click.echo("interrupted: these are the results so far", err=True)
        raise click.exceptions.Exit(_INTERRUPTED)
    if not all(run.has_completed for pair in found.pairs for run in pair):
        click.echo("failed: in some run no request completed", err=True)
        raise click.exceptions.Exit(1)


def _with_records(runs: dict[str, Measured]) -> dict[str, tuple[dict[str, object], list[RequestRecord]]]:
    return {name: (run.result, run.records) for name, run in runs.items()}


def _unequal_work(pairs: list[tuple[Measured, Measured]]) -> str | None:
    """What to say if one server generated more tokens per request than the other, so that ratios compare two works."""
    per_request = []
    for side in (0, 1):
        results = [pair[side].result for pair in pairs]
        num_completed = sum(result["num_completed"] for result in results)
        num_tokens = sum(result["tokens"]["num_output_tokens"] for result in results)
        per_request.append(num_tokens / num_completed if num_completed else 0.0)
    a, b = per_request
    if abs(a - b) <= _MOST_UNEQUAL_TOKENS * max(a, b):
        return None
    return f"A GENERATED {a:.1f} TOKENS PER REQUEST, B {b:.1f}: THE RATIOS COMPARE DIFFERENT WORK"
