"""What HTTP costs: output tokens/s with 64 streams beside the engine alone, and added time to first token at low load.

    python benchmarks/serving_overhead.py [--repetitions 3] [--output result.json] [KEY=VALUE ...]

Both sides run the same model, settings (KEY=VALUE) and prompts, in turn, on an otherwise idle machine: the engine alone
as `tokenloom bench throughput` does, in this process, then `tokenloom serve` under the load generator. Each pair of
runs has prompts of its own, so that no prefix cache helps the second one. The KV cache has room for the streams and a
quarter more, unless `cache.num_blocks` is given, and a first pair is not counted: a new process gets each page of its
memory from the system when it first writes to it, which is no cost of HTTP, and a larger cache puts it off for long.
Exits with 1 where a target is missed: at least 90 % of the tokens/s, less than 10 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from pathlib import Path
from statistics import median
from typing import Any

from repetitions import spread
from serving_process import Serving, serving

from tokenloom import LLM, SamplingParams
from tokenloom.bench.provenance import provenance
from tokenloom.bench.throughput import run_throughput
from tokenloom.bench.workload import WorkloadItem
from tokenloom.load_generator.endpoint import Endpoint, parse_base_url
from tokenloom.load_generator.event_loop import run_with_stop
from tokenloom.load_generator.http_client import LoadClient, open_session
from tokenloom.load_generator.measure import LoadTest, Measured, measure
from tokenloom.load_generator.server_probe import probe_server
from tokenloom.load_generator.traffic import Traffic
from tokenloom.load_generator.workloads import FileWorkload, PlannedRequest
from tokenloom.simulation.measurements import SloTargets
from tokenloom.simulation.request_mix import RequestMix
from tokenloom.simulation.timed_request import TimedRequest

LEAST_SHARE = 0.9
MOST_ADDED_S = 0.01
BLOCK_SIZE = 16
"""Tokens of a KV block, unless another size is asked for."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=160)
    parser.add_argument("--output-tokens", type=int, default=120)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--low-load-requests", type=int, default=20)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    overrides = [*args.overrides, *cache_size(args)]
    with LLM(overrides=overrides) as llm, serving(overrides) as server:
        run_pair(llm, server, random_items(args.streams, args.prompt_tokens, args.output_tokens, seed=0))
        throughput = [
            run_pair(llm, server, random_items(args.streams, args.prompt_tokens, args.output_tokens, seed))
            for seed in range(1, args.repetitions + 1)
        ]
        items = random_items(args.low_load_requests, args.prompt_tokens, 4, seed=1000)
        first_tokens = [time_to_first_tokens(llm, server.base_url, item) for item in items]
    result = {**figures(throughput, first_tokens), "provenance": provenance(), "arguments": vars(args)}
    report(result)
    if args.output is not None:
        args.output.write_text(json.dumps(result, indent=1, default=str) + "\n", encoding="utf-8")
    return 0 if result["share"]["median"] >= LEAST_SHARE and result["added_ttft_s"]["median"] < MOST_ADDED_S else 1


def cache_size(args: argparse.Namespace) -> list[str]:
    """What makes the KV cache a quarter larger than the streams need, where nothing else was asked for."""
    if any(word.startswith("cache.num_blocks=") for word in args.overrides):
        return []
    num_tokens = args.streams * (args.prompt_tokens + args.output_tokens + BLOCK_SIZE)
    return [f"cache.num_blocks={1 + 5 * num_tokens // (4 * BLOCK_SIZE)}"]


def random_items(count: int, prompt_tokens: int, output_tokens: int, seed: int) -> list[WorkloadItem]:
    draw = random.Random(seed)
    prompts = [[draw.randrange(256, 32000) for _ in range(prompt_tokens)] for _ in range(count)]
    return [WorkloadItem(prompt=prompt, max_tokens=output_tokens) for prompt in prompts]


def run_pair(llm: LLM, server: Serving, items: list[WorkloadItem]) -> dict[str, Any]:
    """The same work without and with HTTP."""
    cpu_s = [time.process_time(), server.cpu_s()]
    alone = run_throughput(llm, items, keep_cache=False, progress=lambda _: None).result
    alone_cpu_s = time.process_time() - cpu_s[0]
    served = over_http(server.base_url, items, Traffic("all")).result
    assert served["num_completed"] == len(items), served["failures"]
    return {
        "alone_cpu_s": alone_cpu_s,
        "served_cpu_s": server.cpu_s() - cpu_s[1],
        "alone_tok_s": alone["output_tok_s"],
        "served_tok_s": served["output_tok_s"],
        "client_cpu_s": served["client"]["cpu_s"],
    }


def time_to_first_tokens(llm: LLM, base_url: str, item: WorkloadItem) -> dict[str, float]:
    """TTFT of one request alone, without and with HTTP."""
    llm.engine.reset_prefix_cache()
    params = SamplingParams(temperature=0.0, max_tokens=item.max_tokens, ignore_eos=True)
    metrics = llm.generate([item.prompt], params)[0].outputs[0].metrics
    assert metrics.ttft_s is not None
    served = over_http(base_url, [item], Traffic("closed", 1)).records[0]
    assert served.ttft_s is not None, served.message
    return {"alone_s": metrics.ttft_s, "served_s": served.ttft_s}


def over_http(base_url: str, items: list[WorkloadItem], traffic: Traffic) -> Measured:
    planned = [
        PlannedRequest(TimedRequest(0.0, len(item.prompt), item.max_tokens, token_ids=tuple(item.prompt)))
        for item in items
    ]
    workload = FileWorkload(planned, RequestMix())
    test = LoadTest(workload, traffic, 0.0, False, SloTargets(60.0, 60.0), vocab_size=32000)
    endpoint = Endpoint(parse_base_url(base_url), "completions", "", extra_body={"ignore_eos": True})

    async def run(stop: asyncio.Event) -> Measured:
        async with open_session() as session:
            client = LoadClient(endpoint, session, time.perf_counter)
            # The probe also opens the connection, which a client of a running service has.
            server = await probe_server(client, "token_ids", [300])
            measured = await measure(test, server, client, 0, stop)
            measured.require_server()
            return measured

    return run_with_stop(run)


def figures(throughput: list[dict[str, Any]], first_tokens: list[dict[str, float]]) -> dict[str, Any]:
    added = [times["served_s"] - times["alone_s"] for times in first_tokens]
    return {
        "share": spread([pair["served_tok_s"] / pair["alone_tok_s"] for pair in throughput]),
        "added_ttft_s": spread(added),
        "throughput": throughput,
        "first_tokens": first_tokens,
    }


def report(result: dict[str, Any]) -> None:
    for pair in result["throughput"]:
        print(
            f"output tokens/s: engine alone {pair['alone_tok_s']:.1f}, over HTTP {pair['served_tok_s']:.1f} "
            f"({pair['served_tok_s'] / pair['alone_tok_s']:.1%}); CPU {pair['alone_cpu_s']:.1f} s, over HTTP "
            f"{pair['served_cpu_s']:.1f} s and the client's {pair['client_cpu_s']:.2f} s"
        )
    share, added = result["share"], result["added_ttft_s"]
    print(f"share: {share['min']:.1%} .. {share['median']:.1%} .. {share['max']:.1%}, target {LEAST_SHARE:.0%}")
    alone = median(times["alone_s"] for times in result["first_tokens"])
    print(
        f"TTFT at low load: engine alone {1000 * alone:.1f} ms; HTTP adds {1000 * added['min']:.1f} .. "
        f"{1000 * added['median']:.1f} .. {1000 * added['max']:.1f} ms, target {1000 * MOST_ADDED_S:g} ms"
    )


if __name__ == "__main__":
    raise SystemExit(main())
