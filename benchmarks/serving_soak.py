"""Twice the sustainable load for a long time: memory stays flat, goodput holds, the rest is refused at once.

    python benchmarks/serving_soak.py [--minutes 10 | --seconds 60] [--attempts 1] [--output soak.json] [KEY=VALUE ...]

Starts `tokenloom serve` with small queues, finds the rate that it sustains (nine of ten requests within targets that
follow from a full server), then sends twice as many. KEY=VALUE are settings of the server. Exits with 1 where one of
these does not hold: memory of all server processes within 5 %, goodput at least 0.9 of the sustainable one, no failure,
refusals answered within half a second (p99). It needs the machine for itself: what else runs there changes what the
server can sustain. Another attempt begins anew, with another server. Memory grows while steps of new sizes come, so a
short soak needs some seconds of the same load before it, and requests of one length. CI runs it by `make soak`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from serving_process import Serving, serving

from tokenloom.bench.provenance import provenance
from tokenloom.load_generator.endpoint import Endpoint, parse_base_url
from tokenloom.load_generator.event_loop import run_with_stop
from tokenloom.load_generator.http_client import LoadClient, open_session
from tokenloom.load_generator.measure import LoadTest, measure
from tokenloom.load_generator.server_probe import ServerFacts, probe_server
from tokenloom.load_generator.traffic import Traffic
from tokenloom.load_generator.workloads import GeneratedWorkload
from tokenloom.simulation.load_generation import LoadShape
from tokenloom.simulation.measurements import SloTargets
from tokenloom.simulation.request_mix import RequestMix

SUSTAINED_SHARE = 0.9
STEP_DOWN = 0.85
MOST_STEPS = 8
LEAST_GOODPUT = 0.9
MOST_GROWTH = 0.05
MOST_REFUSAL_S = 0.5
SETTLING_SHARE = 0.2
"""Of the soak, during which memory may still grow: pools and caches fill up."""


@dataclass
class Memory:
    """Resident memory of all server processes over time."""

    times_s: list[float] = field(default_factory=list)
    rss_bytes: list[int] = field(default_factory=list)

    async def watch(self, server: Serving, every_s: float) -> None:
        start_s = time.perf_counter()
        while True:
            self.times_s.append(round(time.perf_counter() - start_s, 3))
            self.rss_bytes.append(server.rss_bytes())
            await asyncio.sleep(every_s)

    def spread(self) -> float:
        """(most - least) / least, after the settling time."""
        settled = self.rss_bytes[int(SETTLING_SHARE * len(self.rss_bytes)) :]
        return max(settled) / min(settled) - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=10.0)
    length.add_argument("--seconds", type=float)
    parser.add_argument("--probe-seconds", type=float, default=20.0)
    parser.add_argument("--max-num-seqs", type=int, default=8)
    parser.add_argument("--max-queued-requests", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=16)
    parser.add_argument("--length-spread", type=float, default=0.3)
    parser.add_argument("--settle-seconds", type=float, default=0.0)
    parser.add_argument("--attempts", type=int, default=1)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    return 0 if any(attempt(args, number) for number in range(1, args.attempts + 1)) else 1


def attempt(args: argparse.Namespace, number: int) -> bool:
    """Whether all holds, with a server of its own."""
    if args.attempts > 1:
        print(f"attempt {number} of {args.attempts}", flush=True)
    limits = [
        f"scheduler.max_num_seqs={args.max_num_seqs}",
        f"scheduler.max_queued_requests={args.max_queued_requests}",
        # Memory of KV blocks becomes resident when they are first written: a small pool is in full use from early on.
        f"cache.num_blocks={num_blocks(args)}",
    ]
    with serving([*limits, *args.overrides]) as server:
        try:
            result = run_with_stop(lambda stop: soak(server, args, stop))
        except UnsustainableError as error:
            print(f"FAILED {error}", flush=True)
            return False
    result = {**result, "provenance": provenance(), "arguments": vars(args)}
    if args.output is not None:
        args.output.write_text(json.dumps(result, indent=1, default=str) + "\n", encoding="utf-8")
    report(result)
    return all(result["checks"].values())


def num_blocks(args: argparse.Namespace) -> int:
    """Room for what runs, several times over; of 16 tokens each."""
    per_request: int = args.prompt_tokens + args.output_tokens
    return max(64, 4 * int(args.max_num_seqs) * per_request // 16)


async def soak(server: Serving, args: argparse.Namespace, stop: asyncio.Event) -> dict[str, Any]:
    endpoint = Endpoint(parse_base_url(server.base_url), "completions", "", extra_body={"ignore_eos": True})
    async with open_session() as session:
        client = LoadClient(endpoint, session, time.perf_counter)
        load = Load(args, client, await probe_server(client, "token_ids", [300]), stop)
        full = await load.full_server()
        targets = SloTargets(ttft_s=2 * full["latency"]["e2e_s"]["p99"], tpot_s=2 * full["latency"]["tpot_s"]["p99"])
        rate, sustained = await load.sustained(full["completed_rps"], targets)
        if args.settle_seconds:
            await load.at_rate(2 * rate, targets, args.settle_seconds)
        memory = Memory()
        watching = asyncio.create_task(memory.watch(server, every_s=1.0))
        duration_s = args.seconds if args.seconds is not None else 60 * args.minutes
        overload = await load.at_rate(2 * rate, targets, duration_s)
        watching.cancel()
        await asyncio.wait({watching})
    # Of a short run the share is steadier than the count: arrivals are random.
    goodput = overload["slo"]["goodput_rps"] / (rate * sustained["slo"]["share_met"])
    return {
        "targets": asdict(targets),
        "sustainable_rps": rate,
        "goodput_share": goodput,
        "memory_spread": memory.spread(),
        "checks": checks(overload, goodput, memory.spread()),
        "full": full,
        "sustained": sustained,
        "overload": overload,
        "memory": asdict(memory),
    }


def checks(overload: dict[str, Any], goodput_share: float, memory_spread: float) -> dict[str, bool]:
    """What must hold, by name."""
    refusal_s = overload["refused_after_s"]["p99"]
    return {
        "memory is flat": memory_spread <= MOST_GROWTH,
        "goodput holds": goodput_share >= LEAST_GOODPUT,
        "nothing fails": overload["num_failed"] == 0,
        "the rest is refused at once": overload["num_refused"] > 0 and refusal_s <= MOST_REFUSAL_S,
    }


class UnsustainableError(Exception):
    """No rate is sustained, not even a small one."""


class Load:
    """Loads on one server; each has prompts of its own."""

    def __init__(self, args: argparse.Namespace, client: LoadClient, server: ServerFacts, stop: asyncio.Event) -> None:
        self._args, self._client, self._server, self._stop = args, client, server, stop
        self._seed = 0

    async def full_server(self) -> dict[str, Any]:
        """Every place taken, nothing waiting: what the server can do."""
        traffic = Traffic("closed", self._args.max_num_seqs, self._args.probe_seconds)
        return await self._run(traffic, None, None, SloTargets(60.0, 60.0))

    async def sustained(self, highest_rps: float, targets: SloTargets) -> tuple[float, dict[str, Any]]:
        """The highest rate, of falling ones, at which nine of ten requests are in time."""
        rate = highest_rps
        for _ in range(MOST_STEPS):
            result = await self.at_rate(rate, targets, self._args.probe_seconds)
            if result["slo"]["share_met"] >= SUSTAINED_SHARE:
                return rate, result
            rate *= STEP_DOWN
        raise UnsustainableError(f"no rate down to {rate:.2f} requests/s is sustained within {targets}")

    async def at_rate(self, rate: float, targets: SloTargets, duration_s: float) -> dict[str, Any]:
        count = int(1.5 * rate * duration_s) + 100
        return await self._run(Traffic("poisson", duration_s=duration_s), rate, count, targets)

    async def _run(
        self, traffic: Traffic, rate: float | None, count: int | None, targets: SloTargets
    ) -> dict[str, Any]:
        self._seed += 1
        shape = LoadShape(
            rate=rate,
            prompt_tokens=self._args.prompt_tokens,
            output_tokens=self._args.output_tokens,
            length_spread=self._args.length_spread,
        )
        workload = GeneratedWorkload(shape, RequestMix(), count)
        test = LoadTest(workload, traffic, 0.1 * (traffic.duration_s or 0.0), True, targets, vocab_size=32000)
        measured = await measure(test, self._server, self._client, self._seed, self._stop)
        if measured.was_interrupted:
            raise SystemExit("interrupted")
        measured.require_server()
        what = f"{rate:.2f} requests/s" if rate is not None else f"{traffic.concurrency} at a time"
        result = measured.result
        print(
            f"{what}: {result['completed_rps']:.2f} completed/s, goodput {result['slo']['goodput_rps']:.2f}/s "
            f"({result['slo']['share_met']:.0%}), {result['num_refused']} refused, {result['num_failed']} failed",
            flush=True,
        )
        return result


def report(result: dict[str, Any]) -> None:
    targets, overload, rss = result["targets"], result["overload"], result["memory"]["rss_bytes"]
    refused_ms = overload["refused_after_s"]["p99"]
    print(
        f"sustainable: {result['sustainable_rps']:.2f} requests/s within TTFT {targets['ttft_s']:.2f} s and TPOT "
        f"{1000 * targets['tpot_s']:.0f} ms; at twice that, goodput is {result['goodput_share']:.2f} of it"
    )
    print(
        f"memory: {min(rss) / 1e6:.0f} .. {max(rss) / 1e6:.0f} MB, within {result['memory_spread']:.1%} once settled; "
        f"refused: {overload['num_refused']} of {overload['num_requests']}"
        + (f", p99 after {1000 * refused_ms:.0f} ms" if refused_ms is not None else "")
    )
    for name, holds in result["checks"].items():
        print(f"{'ok    ' if holds else 'FAILED'} {name}")


if __name__ == "__main__":
    raise SystemExit(main())
