"""Plots of simulated runs: latencies against the rate where it was swept, else their distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.bench.plot_file import blank_figure
from tokenloom.simulation.report import TARGETS, strict_latency

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

__all__ = ["PlottedRun", "by_line", "draw_runs"]

_STYLES = ("o-", "s--", "^-.", "v:", "D-", "x--", "P-.", "*:")
"""Of lines, so that equal ones can be told apart where one hides the other."""


@dataclass(frozen=True, slots=True)
class PlottedRun:
    """One run and its place in a plot.

    Attributes:
        result: figures of `simulate`.
        samples: TTFT and TPOT of each completed request, seconds.
        line: what runs of one line have in common; "" if there is nothing but the rate to tell them apart.
        rate: requests per second asked for, or None.
    """

    result: Mapping[str, Any]
    samples: Mapping[str, Sequence[float]]
    line: str
    rate: float | None


def by_line(runs: Mapping[str, PlottedRun]) -> dict[str, dict[float, PlottedRun]]:
    """Runs by line and rate, rates ascending; empty unless at least two rates were asked for."""
    lines: dict[str, dict[float, PlottedRun]] = {}
    for run in sorted(runs.values(), key=lambda run: run.rate or 0.0):
        if run.rate is not None:
            lines.setdefault(run.line, {})[run.rate] = run
    is_sweep = len({rate for line in lines.values() for rate in line}) > 1
    return lines if is_sweep and sum(map(len, lines.values())) == len(runs) else {}


def draw_runs(runs: Mapping[str, PlottedRun], path: Path) -> None:
    """Draws runs by name to a file.

    With two rates or more: p99 of TTFT and TPOT, and goodput, against the rate. Else the share of requests below each
    TTFT and TPOT. Targets are dashed.
    """
    is_rate_sweep = bool(by_line(runs))
    figure = blank_figure(14 if is_rate_sweep else 10, 5)
    axes = figure.subplots(1, 3 if is_rate_sweep else 2)
    targets = next(iter(runs.values())).result["slo"]
    for axis, (key, name) in zip(axes[:2], TARGETS.items(), strict=True):
        if is_rate_sweep:
            _draw_p99(axis, runs, key, name, targets[key])
        else:
            _draw_distribution(axis, runs, key, name, targets[key])
    if is_rate_sweep:
        _draw_goodput(axes[2], runs)
    lines, labels = axes[0].get_legend_handles_labels()
    if labels:
        # One for all panels, where it hides no line.
        figure.legend(lines, labels, loc="outside upper center", ncols=5, fontsize="small")
    figure.savefig(path)


def _draw_p99(axis: Axes, runs: Mapping[str, PlottedRun], key: str, name: str, target_s: float) -> None:
    for (line, members), style in zip(by_line(runs).items(), cycle(_STYLES), strict=False):
        values = {rate: strict_latency(run.result)[key]["p99"] for rate, run in members.items()}
        known = [(rate, value) for rate, value in values.items() if value is not None]
        axis.plot([rate for rate, _ in known], [value for _, value in known], style, label=line or None)
    axis.axhline(target_s, color="grey", linestyle="--", linewidth=1)
    axis.text(0.01, target_s, f"target {target_s:g} s", transform=axis.get_yaxis_transform(), va="bottom", color="grey")
    axis.set(title=f"p99 {name}", xlabel="requests/s that come", ylabel="s", yscale="log")
    _number_axis(axis.yaxis)


def _draw_goodput(axis: Axes, runs: Mapping[str, PlottedRun]) -> None:
    for members, style in zip(by_line(runs).values(), cycle(_STYLES), strict=False):
        axis.plot(list(members), [run.result["slo"]["goodput_rps"] for run in members.values()], style)
    axis.axline((0, 0), slope=1, color="grey", linestyle="--", linewidth=1)
    axis.set(title="goodput (dashed: all that come)", xlim=(0, None), ylim=(0, None))
    axis.set(xlabel="requests/s that come", ylabel="requests/s within all targets")


def _draw_distribution(axis: Axes, runs: Mapping[str, PlottedRun], key: str, name: str, target_s: float) -> None:
    for label, run in runs.items():
        values = sorted(run.samples[key])
        if values:
            shares = [(rank + 1) / len(values) for rank in range(len(values))]
            axis.step(values, shares, where="post", label=label)
    axis.axvline(target_s, color="grey", linestyle="--", linewidth=1)
    axis.text(target_s, 0.01, f"target {target_s:g} s", rotation=90, ha="right", color="grey")
    axis.set(title=name, xlabel="s", ylabel="share of requests", xscale="log", ylim=(0, 1))
    _number_axis(axis.xaxis)


def _number_axis(axis: Axis) -> None:
    """Plain numbers on a logarithmic axis, not powers of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:g}")
