"""`tokenloom bench`: measurements of an engine on this machine, and of servers anywhere."""

from __future__ import annotations

from collections.abc import Mapping

from tokenloom.cli.lazy_group import LazyCommand, LazyGroup

__all__ = ["BENCH_COMMANDS", "bench"]

BENCH_COMMANDS: Mapping[str, LazyCommand] = {
    "throughput": LazyCommand(
        "tokenloom.cli.bench_throughput:throughput",
        "Run a workload offline, all requests at once, greedy.",
        "tokenloom.cli.bench_throughput:ThroughputSettings",
    ),
    "spec": LazyCommand(
        "tokenloom.cli.bench_spec:spec",
        "Compare drafters with no drafts, by category of prompts.",
        "tokenloom.cli.bench_spec:SpecSettings",
    ),
    "serve": LazyCommand(
        "tokenloom.cli.bench_serve:serve",
        "Put load on any OpenAI-compatible server.",
        "tokenloom.cli.bench_serve:BenchServeSettings",
    ),
    "compare": LazyCommand(
        "tokenloom.cli.bench_compare:compare",
        "Compare two servers: their answers, then their speed.",
        "tokenloom.cli.bench_compare:BenchCompareSettings",
    ),
}
"""Its commands. The two for servers load no torch."""

bench = LazyGroup(BENCH_COMMANDS, name="bench", help="Measure an engine on this machine, or a server.")
