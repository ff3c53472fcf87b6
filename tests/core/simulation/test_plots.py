"""Plots: what is drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenloom.simulation.plots import PlottedRun, by_line, draw_runs


def plotted(line: str, rate: float | None, p99: float | None = 0.5) -> PlottedRun:
    latency = {name: {"p99": p99} for name in ("ttft_s", "tpot_s")}
    result = {"latency": latency, "slo": {"ttft_s": 2.0, "tpot_s": 0.1, "goodput_rps": 1.5}}
    samples = [] if p99 is None else [0.1, 0.2, p99]
    return PlottedRun(result, {"ttft_s": samples, "tpot_s": samples}, line, rate)


def test_runs_are_put_in_lines_by_rate() -> None:
    runs = {f"{line} {rate}": plotted(line, rate) for rate in (8.0, 2.0) for line in ("a", "b")}
    lines = by_line(runs)
    assert {line: list(rates) for line, rates in lines.items()} == {"a": [2.0, 8.0], "b": [2.0, 8.0]}
    assert by_line({"a": plotted("a", 2.0), "b": plotted("b", 2.0)}) == {}
    assert by_line({"a": plotted("a", None), "b": plotted("b", 2.0)}) == {}


@pytest.mark.parametrize("rates", [(2.0, 8.0), (None, None)], ids=["rates", "distributions"])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_file_is_drawn_also_where_nothing_completed(
    tmp_path: Path, rates: tuple[float | None, float | None], suffix: str
) -> None:
    path = tmp_path / f"plot.{suffix}"
    draw_runs({"a": plotted("a", rates[0]), "b": plotted("a", rates[1], p99=None)}, path)
    assert path.stat().st_size > 5_000
