"""Plots of an experiment: a panel for each figure, as lines over a swept number or as bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tokenloom.bench.plot_file import blank_figure
from tokenloom.experiments.figures import PointResult, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_figures", "swept_number"]

_PANELS_IN_A_ROW = 3
_MAX_LABEL_LENGTH = 40


def swept_number(points: Sequence[PointResult]) -> str | None:
    """The key that goes on the horizontal axis: the one with most values, at least two, all of them numbers."""
    keys = dict.fromkeys(key for point in points for key in point.changes)
    values = {key: {point.changes.get(key, "") for point in points} for key in keys}
    numeric = [key for key, found in values.items() if len(found) > 1 and all(map(_is_number, found))]
    return max(numeric, key=lambda key: len(values[key]), default=None)


def draw_figures(points: Sequence[PointResult], figures: Sequence[str], path: Path) -> None:
    """Draws the figures of all points that did not fail to a file, those that are numbers. Draws nothing if all
    failed."""
    done = [point for point in points if point.result is not None]
    figures = [name for name in figures if any(_number(point, name) is not None for point in done)]
    if not figures:
        return
    num_columns = min(_PANELS_IN_A_ROW, len(figures))
    num_rows = -(-len(figures) // num_columns)
    page = blank_figure(4.5 * num_columns, 3.6 * num_rows)
    panels = page.subplots(num_rows, num_columns, squeeze=False).flatten()
    axis_key = swept_number(done)
    for panel, name in zip(panels, figures, strict=False):
        if axis_key is None:
            _draw_bars(panel, done, name)
        else:
            _draw_lines(panel, done, name, axis_key)
    for panel in panels[len(figures) :]:
        panel.set_visible(False)
    page.savefig(path)


def _draw_bars(panel: Axes, points: Sequence[PointResult], name: str) -> None:
    values = [_number(point, name) for point in points]
    places = range(len(points))
    panel.barh(places, [value or 0.0 for value in values])
    panel.set_yticks(places, [_short(point.name) for point in points])
    panel.invert_yaxis()
    panel.tick_params(axis="y", labelsize="x-small")
    panel.set(title=name)


def _draw_lines(panel: Axes, points: Sequence[PointResult], name: str, axis_key: str) -> None:
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        value = _number(point, name)
        rest = " ".join(f"{key}={text}" for key, text in point.changes.items() if key != axis_key)
        if value is not None:
            lines.setdefault(rest, []).append((float(point.changes[axis_key]), value))
    for label, line in lines.items():
        ordered = sorted(line)
        panel.plot([x for x, _ in ordered], [y for _, y in ordered], marker="o", label=_short(label) or None)
    panel.set(title=name, xlabel=axis_key)
    if panel.get_legend_handles_labels()[1]:
        panel.legend(fontsize="x-small")


def _number(point: PointResult, name: str) -> float | None:
    value = figure(point.result or {}, name)
    return float(value) if isinstance(value, int | float) else None


def _short(name: str) -> str:
    """A name that leaves room for its panel: of a long one the end, where names of one sweep differ."""
    return name if len(name) <= _MAX_LABEL_LENGTH else "…" + name[1 - _MAX_LABEL_LENGTH :]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
