"""Figures by name, and the tables of an experiment."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from tokenloom.errors import ConfigError
from tokenloom.experiments.figures import PointResult, check_figures, csv_table, figure, markdown_table
from tokenloom.experiments.plots import draw_figures, swept_number

RESULT: dict[str, Any] = {"a": {"b": 1.5, "none": None}, "n": 2, "list": [1], "config": {"x": 1}, "provenance": {}}


def point(changes: dict[str, str], result: dict[str, Any] | None, error: str | None = None) -> PointResult:
    name = " ".join(f"{key}={value}" for key, value in changes.items())
    return PointResult(name, changes, f"{name}.json", result, error)


POINTS = [point({"k": "1", "s": "x|y"}, RESULT), point({"k": "2", "s": "z"}, None, "no memory\nat all")]


def test_a_figure_is_found_by_its_dotted_name() -> None:
    assert figure(RESULT, "a.b") == 1.5
    assert figure(RESULT, "n") == 2
    assert figure(RESULT, "a") is None
    assert figure(RESULT, "a.b.c") is None


def test_csv_has_every_number_and_why_a_point_failed() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_table(POINTS))))
    assert list(rows[0]) == ["configuration", "file", "status", "error", "k", "s", "a.b", "a.none", "n"]
    assert (rows[0]["status"], rows[0]["a.b"], rows[0]["k"]) == ("done", "1.5", "1")
    assert (rows[1]["status"], rows[1]["a.b"], rows[1]["error"]) == ("failed", "", "no memory\nat all")


def test_markdown_has_a_row_each() -> None:
    lines = markdown_table(POINTS, ("a.b", "a.none")).splitlines()
    assert lines[0] == "| configuration | a.b | a.none |"
    assert lines[2] == "| k=1 s=x\\|y | 1.5 | - |"
    assert lines[3] == "| k=2 s=z | failed | - |"


def test_a_figure_that_nobody_has_is_refused_with_a_near_one() -> None:
    check_figures(POINTS, ("a.b", "a.none"))
    check_figures(POINTS[1:], ("a.bb",))
    with pytest.raises(ConfigError, match=r"figures=a\.bb.*a\.b"):
        check_figures(POINTS, ("a.bb",))


def test_figures_that_later_results_may_have_are_refused_at_the_end_only() -> None:
    check_figures(POINTS, ("engine.times_s.transfer",), more_to_come=True)
    with pytest.raises(ConfigError, match=r"figures=engine\.times_s\.transfer"):
        check_figures(POINTS, ("engine.times_s.transfer",))
    with pytest.raises(ConfigError, match=r"figures=a\.bb"):
        check_figures(POINTS, ("a.bb",), more_to_come=True)


def test_the_axis_is_the_swept_number_with_most_values() -> None:
    points = [point({"s": s, "r": r, "k": k}, RESULT) for s in "xy" for r in ("1", "2") for k in ("1", "2.5", "4e1")]
    assert swept_number(points) == "k"
    assert swept_number([point({"s": s}, RESULT) for s in "xy"]) is None
    assert swept_number([point({"k": "1"}, RESULT)]) is None


@pytest.mark.parametrize("value", ["folder/" * 40 + "a.jsonl", "x" * 300])
def test_long_names_leave_room_for_the_bars(value: str, tmp_path: Path) -> None:
    """Matplotlib warns where they do not, and a warning is an error here."""
    pytest.importorskip("matplotlib")
    draw_figures([point({"s": value}, RESULT), *POINTS], ("a.b", "n", "a.none"), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("key", ["k", "s"])
def test_plots_are_drawn_over_numbers_and_over_words(key: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    values = ("1", "2") if key == "k" else ("x", "z")
    points = [point({key: value}, RESULT) for value in values] + POINTS[1:]
    draw_figures(points, ("a.b", "a.none", "n", "n"), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_is_drawn_where_all_failed(tmp_path: Path) -> None:
    draw_figures(POINTS[1:], ("a.b",), tmp_path / "plot.png")
    assert not (tmp_path / "plot.png").exists()
