"""Plots of measured loads: latencies over time and their distributions, or figures against the swept value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.bench.plot_file import blank_figure
from tokenloom.load_generator.comparison import Ratio
from tokenloom.load_generator.load_request import Outcome, RequestRecord
from tokenloom.load_generator.measure import Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_load", "draw_ratios", "draw_sweep"]

_DASHED: Mapping[str, Any] = {"color": "grey", "linestyle": "--", "linewidth": 1}
_LATENCIES: Mapping[str, tuple[str, Callable[[RequestRecord], float | None]]] = {
    "ttft_s": ("TTFT", lambda record: record.ttft_s),
    "tpot_s": ("TPOT", lambda record: record.tpot_s),
    "e2e_s": ("E2E", lambda record: record.e2e_s),
}


def draw_load(run: Measured, path: Path) -> None:
    """Draws one run: latencies of each request over the time at which it was due, and the share of requests below each.

    The measured window is white, what is left out grey. Targets are dashed; crosses are requests that did not complete.
    """
    figure = _figure(3, 2)
    axes = figure.subplots(2, 3)
    for column, (key, (name, value_of)) in enumerate(_LATENCIES.items()):
        over_time, distribution = axes[0][column], axes[1][column]
        _draw_over_time(over_time, run, value_of)
        over_time.set(title=name, xlabel="due, s from the start", ylabel="s")
        window = run.result["window"]
        inside = [r for r in run.records if r.is_completed and window["start_s"] <= r.scheduled_s <= window["end_s"]]
        _draw_distribution(distribution, [value for r in inside if (value := value_of(r)) is not None])
        distribution.set(xlabel=f"{name}, s", ylabel="share of requests", ylim=(0, 1))
        if key in run.result["slo"]:
            over_time.axhline(run.result["slo"][key], **_DASHED)
            distribution.axvline(run.result["slo"][key], **_DASHED)
    figure.savefig(path)


def draw_sweep(key: str, runs: Mapping[float, Mapping[str, Any]], path: Path) -> None:
    """Draws results against the value that was swept: p50 and p99 of TTFT and TPOT, tokens per second, goodput."""
    figure = _figure(4, 1)
    axes = figure.subplots(1, 4)
    values = sorted(runs)
    for axis, latency in zip(axes[:2], ("ttft_s", "tpot_s"), strict=True):
        for percentile in ("p50", "p99"):
            known = [(v, found) for v in values if (found := runs[v]["latency"][latency][percentile]) is not None]
            axis.plot([v for v, _ in known], [found for _, found in known], marker="o", label=percentile)
        axis.axhline(runs[values[0]]["slo"][latency], **_DASHED)
        axis.set(xlabel=key, ylabel=f"{_LATENCIES[latency][0]}, s", yscale="log")
        axis.legend(fontsize="small")
    axes[2].plot(values, [runs[value]["output_tok_s"] for value in values], marker="o")
    axes[2].set(xlabel=key, ylabel="output tokens/s", ylim=(0, None))
    axes[3].plot(values, [runs[value]["slo"]["goodput_rps"] for value in values], marker="o")
    axes[3].set(xlabel=key, ylabel="requests/s within all targets", ylim=(0, None))
    if key == "rate":
        axes[3].axline((0, 0), slope=1, **_DASHED)
    figure.savefig(path)


def draw_ratios(ratios: Sequence[Ratio], path: Path) -> None:
    """Draws the ratio A / B of each figure: a dot for each pair of runs, a bar from the least to the largest."""
    figure = _figure(2, 1)
    axis = figure.subplots()
    known = [ratio for ratio in reversed(ratios) if ratio.values]
    for row, ratio in enumerate(known):
        axis.plot([min(ratio.values), max(ratio.values)], [row, row], color="grey", linewidth=2)
        axis.plot(ratio.values, [row] * len(ratio.values), "o", color="C0")
    axis.axvline(1.0, **_DASHED)
    axis.set_yticks(range(len(known)), [f"{ratio.figure} ({ratio.better} is better)" for ratio in known])
    axis.set(xlabel="A / B")
    figure.savefig(path)


def _figure(columns: int, rows: int) -> Figure:
    return blank_figure(4.5 * columns, 4.0 * rows)


def _draw_over_time(axis: Axes, run: Measured, value_of: Callable[[RequestRecord], float | None]) -> None:
    completed = [(r.scheduled_s, value) for r in run.records if r.is_completed and (value := value_of(r)) is not None]
    axis.plot([time_s for time_s, _ in completed], [value for _, value in completed], ".", markersize=4)
    others = [r.scheduled_s for r in run.records if r.outcome in (Outcome.FAILED, Outcome.REFUSED)]
    axis.plot(others, [0.0] * len(others), "x", color="C3", markersize=5)
    window = run.result["window"]
    last_s = max((record.scheduled_s for record in run.records), default=0.0)
    for start_s, end_s in ((0.0, window["start_s"]), (window["end_s"], last_s)):
        if end_s > start_s:
            axis.axvspan(start_s, end_s, color="0.92")
    axis.set(ylim=(0, None))


def _draw_distribution(axis: Axes, values: Sequence[float]) -> None:
    if values:
        axis.step(sorted(values), [(rank + 1) / len(values) for rank in range(len(values))], where="post")
