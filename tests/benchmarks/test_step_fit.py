"""The fit of `step_floor.py`: it finds what made the times, and says how far off it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

POINTS = [(rows, context) for rows in (1, 8, 128) for context in (256, 1024, 8192)]


def steps(slowest: float = 1.0) -> list[dict[str, Any]]:
    """3 ms, 20 GB/s and 50 us a row; the last step takes `slowest` times as long."""
    found = []
    for rows, context in POINTS:
        num_bytes = 270_000_000 + 23_040 * rows * context
        step_s = 0.003 + num_bytes / 20e9 + 50e-6 * rows
        found.append({"rows": rows, "context": context, "step_s": step_s, "operations": [{"num_bytes": num_bytes}]})
    found[-1]["step_s"] *= slowest
    return found


def test_the_fit_finds_what_made_the_times() -> None:
    from step_fit import fit_steps

    fit = fit_steps(steps())
    assert fit.fixed_s == pytest.approx(0.003)
    assert fit.bytes_per_s == pytest.approx(20e9)
    assert fit.row_s == pytest.approx(50e-6)
    assert fit.r_squared == pytest.approx(1.0)
    assert fit.worst == pytest.approx(0.0, abs=1e-6)


def test_a_step_off_the_line_is_told_of() -> None:
    from step_fit import fit_steps

    assert fit_steps(steps(slowest=2.0)).worst > 0.1


def test_the_plot_is_written(tmp_path: Path) -> None:
    from step_fit import draw, fit_steps

    draw(steps(), fit_steps(steps()), tmp_path / "steps.png")
    assert (tmp_path / "steps.png").stat().st_size > 0
