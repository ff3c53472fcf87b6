"""Plots of simulated runs: latencies against the rate where it was swept, else their distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["PlottedRun", "by_line", "check_plotting", "draw_runs"]

_SUFFIXES = (".png", ".svg", ".pdf")
_NAMES = {"ttft_s": "TTFT", "tpot_s": "TPOT"}


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


def check_plotting(path: Path) -> None:
    """Raises ConfigError if no plot could be drawn to this file."""
    if path.suffix not in _SUFFIXES:
        raise ConfigError(f"plot={path}: its name must end in {' or '.join(_SUFFIXES)}")
    if find_spec("matplotlib") is None:
        raise ConfigError(f"plot={path} needs matplotlib, which is not installed: pip install 'tokenloom[plot]'")


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
    # Imported here: matplotlib is optional, and slow to load.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    is_rate_sweep = bool(by_line(runs))
    figure = Figure(figsize=(14, 4.5) if is_rate_sweep else (10, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 3 if is_rate_sweep else 2)
    targets = next(iter(runs.values())).result["slo"]
    for axis, (key, name) in zip(axes[:2], _NAMES.items(), strict=True):
        if is_rate_sweep:
            _draw_p99(axis, runs, key, name, targets[key])
        else:
            _draw_distribution(axis, runs, key, name, targets[key])
    if is_rate_sweep:
        _draw_goodput(axes[2], runs)
    figure.savefig(path)


def _draw_p99(axis: Axes, runs: Mapping[str, PlottedRun], key: str, name: str, target_s: float) -> None:
    for line, members in by_line(runs).items():
        values = {rate: run.result["latency"][key]["p99"] for rate, run in members.items()}
        known = [(rate, value) for rate, value in values.items() if value is not None]
        axis.plot([rate for rate, _ in known], [value for _, value in known], marker="o", label=line or None)
    axis.axhline(target_s, color="grey", linestyle="--", linewidth=1)
    axis.set(xlabel="requests/s", ylabel=f"p99 {name}, s", yscale="log")
    _legend(axis)


def _draw_goodput(axis: Axes, runs: Mapping[str, PlottedRun]) -> None:
    for line, members in by_line(runs).items():
        goodput = [run.result["slo"]["goodput_rps"] for run in members.values()]
        axis.plot(list(members), goodput, marker="o", label=line or None)
    axis.axline((0, 0), slope=1, color="grey", linestyle="--", linewidth=1)
    axis.set(xlabel="requests/s", ylabel="requests/s within all targets", xlim=(0, None), ylim=(0, None))
    _legend(axis)


def _draw_distribution(axis: Axes, runs: Mapping[str, PlottedRun], key: str, name: str, target_s: float) -> None:
    for label, run in runs.items():
        values = sorted(run.samples[key])
        if values:
            shares = [(rank + 1) / len(values) for rank in range(len(values))]
            axis.step(values, shares, where="post", label=label)
    axis.axvline(target_s, color="grey", linestyle="--", linewidth=1)
    axis.set(xlabel=f"{name}, s", ylabel="share of requests", xscale="log", ylim=(0, 1))
    _legend(axis)


def _legend(axis: Axes) -> None:
    if axis.get_legend_handles_labels()[1]:
        axis.legend(fontsize="small")
