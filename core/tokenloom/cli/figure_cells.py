"""Figures that the tables of several commands show, as text: times, goodput, drafts, and the table of latencies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenloom.cli.console import print_table

__all__ = ["drafts_accepted", "goodput_of", "milliseconds", "print_latencies"]

_LATENCIES = {"ttft_s": "TTFT ms", "tpot_s": "TPOT ms", "itl_s": "ITL ms", "e2e_s": "E2E ms"}
_PERCENTILES = ("mean", "p50", "p90", "p95", "p99")


def print_latencies(latency: Mapping[str, Mapping[str, float | None]]) -> None:
    """Prints mean and percentiles of TTFT, TPOT, ITL and E2E; `latency` holds them by name, in seconds."""
    print_table(
        ("latency", *_PERCENTILES),
        [(name, *(milliseconds(latency[key][p]) for p in _PERCENTILES)) for key, name in _LATENCIES.items()],
    )


def milliseconds(seconds: float | None) -> str:
    """A time in milliseconds; "-" for none."""
    return "-" if seconds is None else f"{1000 * seconds:.1f}"


def goodput_of(slo: Mapping[str, float]) -> str:
    """Goodput, the share of requests within the targets, and these."""
    return (
        f"{slo['goodput_rps']:.3f} requests/s, {slo['share_met']:.1%} within TTFT {slo['ttft_s']:g} s and TPOT "
        f"{1000 * slo['tpot_s']:g} ms"
    )


def drafts_accepted(engine: Mapping[str, Any]) -> str:
    """Drafts accepted of those verified, of an engine that verified some."""
    rate = engine["num_accepted_tokens"] / engine["num_draft_tokens"]
    return f"{engine['num_accepted_tokens']}/{engine['num_draft_tokens']} ({rate:.0%})"
