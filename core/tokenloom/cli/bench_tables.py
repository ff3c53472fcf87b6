"""Tables of what a benchmark measured: one run in full, or one row for each configuration."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from tokenloom.cli.console import print_table
from tokenloom.cli.figure_cells import drafts_accepted, milliseconds, print_latencies

__all__ = ["print_comparison", "print_result"]


def print_result(result: Mapping[str, Any]) -> None:
    """Prints all figures of one configuration."""
    walls = result["repetitions_wall_s"]
    engine = result["engine"]
    rows = [
        ("output tokens/s", f"{result['output_tok_s']:.1f}"),
        ("total tokens/s", f"{result['total_tok_s']:.1f}"),
        ("wall time", f"{result['wall_s']:.2f} s"),
        ("requests", f"{result['num_requests']} ({result['num_failed']} failed)"),
        ("prompt / output tokens", f"{result['num_prompt_tokens']} / {result['num_output_tokens']}"),
        ("steps", f"{engine['num_steps']}, Python part {result['python_ms_per_step']:.2f} ms each"),
        ("prompt tokens cached", str(engine["num_cached_tokens"])),
        ("preemptions", str(engine["num_preemptions"])),
    ]
    if engine["num_draft_tokens"]:
        rows.append(("drafts accepted", drafts_accepted(engine)))
    if len(walls) > 1:
        rows.append(("repetitions", f"{len(walls)}: {min(walls):.2f} .. {median(walls):.2f} .. {max(walls):.2f} s"))
    print_table(("figure", "value"), rows)
    print_latencies(result["latency"])


def print_comparison(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints one row for each configuration, in the order in which they ran."""
    columns = (
        "configuration",
        "tokens/s",
        "wall s",
        "TTFT ms mean",
        "p50",
        "p99",
        "TPOT ms p50",
        "preempted",
        "cached",
    )
    print_table(columns, [(name, *_row(result)) for name, result in results.items()])


def _row(result: Mapping[str, Any]) -> tuple[str, ...]:
    ttft, tpot, engine = result["latency"]["ttft_s"], result["latency"]["tpot_s"], result["engine"]
    return (
        f"{result['output_tok_s']:.1f}",
        f"{result['wall_s']:.2f}",
        *(milliseconds(ttft[key]) for key in ("mean", "p50", "p99")),
        milliseconds(tpot["p50"]),
        str(engine["num_preemptions"]),
        str(engine["num_cached_tokens"]),
    )
