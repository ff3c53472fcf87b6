"""Tables of what a simulation found: one row for each configuration, or all figures of one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from tokenloom.cli.console import print_table
from tokenloom.cli.figure_cells import drafts_accepted, goodput_of, milliseconds, print_latencies
from tokenloom.kv.memory_plan import format_bytes
from tokenloom.simulation.report import missed_targets
from tokenloom.simulation.request_groups import GROUPINGS

__all__ = ["print_cache_result", "print_capacity", "print_runs"]

_MOST_GROUPS = 10
"""Rows of one table of groups for each run; `output=` has all of them."""


def print_runs(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints one run in full, or several with a row each."""
    if len(results) == 1:
        _print_one(*results.values())
        _print_groups(results)
        return
    columns: tuple[str, ...] = (
        "configuration",
        "req/s",
        "goodput req/s",
        "SLO met",
        "tokens/s",
        "TTFT ms p50",
        "p99",
        "TPOT ms p50",
        "p99",
        "ITL ms p99",
        "hit ratio",
        "preempted",
        "recomputed",
        "KV used",
    )
    rows = [(name, *_row(result)) for name, result in results.items()]
    if any(result["num_rejected"] for result in results.values()):
        columns = (*columns, "rejected")
        rows = [(*row, str(r["num_rejected"])) for row, r in zip(rows, results.values(), strict=True)]
    print_table(columns, rows)
    _print_groups(results)


def print_cache_result(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints the hit ratio of one replay with its counts, or of several with a row each."""
    if len(results) > 1:
        columns = ("configuration", "hit_ratio", "hits", "references", "evicted")
        rows = [
            (name, f"{r['hit_ratio']:.6f}", str(r["num_hits"]), str(r["num_references"]), str(r["num_evicted"]))
            for name, r in results.items()
        ]
        print_table(columns, rows)
        return
    (result,) = results.values()
    rows_of_one = [
        ("hit_ratio", f"{result['hit_ratio']:.6f}"),
        ("hits / block references", f"{result['num_hits']} / {result['num_references']}"),
        ("requests", str(result["num_requests"])),
        ("different blocks", str(result["num_distinct"])),
        ("capacity", f"{result['num_blocks'] - 1} blocks of {result['block_size']} tokens"),
        ("evicted", str(result["num_evicted"])),
    ]
    print_table(("figure", "value"), rows_of_one)


def print_capacity(lines: Mapping[str, Mapping[float, Mapping[str, Any]]]) -> None:
    """Prints, per line of configurations, the highest rate of those tried up to which all targets were met."""
    columns = ("configuration", "requests/s with all targets met at p99", "the next rate that was tried misses, at p99")
    print_table(columns, [(line or "all", *_capacity(by_rate)) for line, by_rate in lines.items()])


def _capacity(by_rate: Mapping[float, Mapping[str, Any]]) -> tuple[str, str]:
    rates = sorted(by_rate)
    met = list(itertools.takewhile(lambda rate: not missed_targets(by_rate[rate]), rates))
    if len(met) == len(rates):
        return f"{met[-1]:g} or more", "-"
    too_high = rates[len(met)]
    shown = f"{met[-1]:g}" if met else f"below {too_high:g}"
    return shown, f"{too_high:g}: {', '.join(missed_targets(by_rate[too_high]))}"


def _print_one(result: Mapping[str, Any]) -> None:
    slo, occupancy, engine, missed = result["slo"], result["occupancy"], result["engine"], missed_targets(result)
    overloaded = f" ({result['num_overloaded']} by a full queue)" if result["num_overloaded"] else ""
    rejected = f"{overloaded}, first: {result['first_rejection']}" if result["first_rejection"] else ""
    rows = [
        (
            "requests",
            f"{result['num_completed']} of {result['num_requests']} completed, {result['num_failed']} failed, "
            f"{result['num_rejected']} rejected{rejected}",
        ),
        ("simulated time", f"{result['duration_s']:.2f} s, {result['num_steps']} steps"),
        ("requests/s", f"{result['completed_rps']:.3f}"),
        ("output tokens/s", f"{result['output_tok_s']:.1f}"),
        ("total tokens/s", f"{result['total_tok_s']:.1f}"),
        ("goodput", goodput_of(slo)),
        ("targets at p99", f"missed: {', '.join(missed)}" if missed else "met"),
        ("hit ratio", f"{result['hit_ratio']:.4f} of the prompt tokens"),
        ("preemptions", _preemptions(result)),
        (
            "recomputed / computed",
            f"{result['num_recomputed_tokens']} / {result['num_computed_tokens']} tokens "
            f"({result['recomputed_share']:.2%})",
        ),
        ("KV in use", f"mean {occupancy['kv_mean']:.1%}, peak {occupancy['kv_peak']:.1%}"),
        ("running", f"mean {occupancy['running_mean']:.1f}, peak {occupancy['running_peak']:.0f}"),
        ("waiting", f"mean {occupancy['waiting_mean']:.1f}, peak {occupancy['waiting_peak']:.0f}"),
    ]
    if engine["num_draft_tokens"]:
        rows.append(("drafts accepted", drafts_accepted(engine)))
    print_table(("figure", "value"), rows)
    print_latencies(result["latency"])


def _print_groups(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints what tenants, priorities and sorts of targets got, where there are several; a table for each."""
    columns = ("requests", "completed", "service", "TTFT ms p50", "p99", "TPOT ms p99", "SLO met")
    for grouping in GROUPINGS:
        runs = {name: result for name, result in results.items() if grouping in result}
        if not runs:
            continue
        most = max(len(result[grouping]) for result in runs.values())
        title = f"{grouping.replace('_', ' ')}{f', the first {_MOST_GROUPS} of {most}' if most > _MOST_GROUPS else ''}"
        rows = [
            (name, member, *_group_row(group))
            for name, result in runs.items()
            for member, group in itertools.islice(result[grouping].items(), _MOST_GROUPS)
        ]
        first = 1 if len(results) == 1 else 0  # one run needs no name
        heads = ("configuration", grouping.removeprefix("by_"), *columns)
        print_table(heads[first:], [row[first:] for row in rows], title)
    fair = {name: result["fairness"] for name, result in results.items() if "fairness" in result}
    if fair:
        shown = [(name, f"{f['service_gap']:.0f}", milliseconds(f["worst_ttft_p99_s"])) for name, f in fair.items()]
        print_table(("configuration", "largest service gap of tenants that wait", "worst tenant's TTFT ms p99"), shown)


def _group_row(group: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(group["num_requests"]),
        str(group["num_completed"]),
        f"{group['service']:.0f}",
        milliseconds(group["ttft_s"]["p50"]),
        milliseconds(group["ttft_s"]["p99"]),
        milliseconds(group["tpot_s"]["p99"]),
        f"{group['share_met']:.1%}",
    )


def _preemptions(result: Mapping[str, Any]) -> str:
    engine = result["engine"]
    if not engine["num_swaps"]:
        return str(result["num_preemptions"])
    lost = f", {engine['num_lost_swaps']} of them lost" if engine["num_lost_swaps"] else ""
    moved = format_bytes(engine["num_swapped_bytes"])
    return f"{result['num_preemptions']}, {engine['num_swaps']} by swap of {moved}{lost}"


def _row(result: Mapping[str, Any]) -> tuple[str, ...]:
    latency, slo = result["latency"], result["slo"]
    return (
        f"{result['completed_rps']:.2f}",
        f"{slo['goodput_rps']:.2f}",
        f"{slo['share_met']:.1%}",
        f"{result['output_tok_s']:.1f}",
        milliseconds(latency["ttft_s"]["p50"]),
        milliseconds(latency["ttft_s"]["p99"]),
        milliseconds(latency["tpot_s"]["p50"]),
        milliseconds(latency["tpot_s"]["p99"]),
        milliseconds(latency["itl_s"]["p99"]),
        f"{result['hit_ratio']:.4f}",
        str(result["num_preemptions"]),
        f"{result['recomputed_share']:.2%}",
        f"{result['occupancy']['kv_mean']:.1%}",
    )
