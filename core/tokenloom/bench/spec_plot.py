"""The plot of `tokenloom bench spec`: speed-up by category, and acceptance by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.bench.plot_file import blank_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_speculation"]


def draw_speculation(drafters: Mapping[str, Mapping[str, Mapping[str, Any]]], together: str, path: Path) -> None:
    """Draws to a file.

    Args:
        drafters: figures of `category_figures` by drafter and category; all have the same categories.
        together: the category that holds all others.
        path: where to.
    """
    categories = list(next(iter(drafters.values())))
    figure = blank_figure(max(10.0, 4.0 + 0.35 * len(categories) * len(drafters)), 5)
    speed, acceptance = figure.subplots(1, 2, width_ratios=(3, 1))
    _draw_speed(speed, drafters, categories)
    for name, figures in drafters.items():
        rates = figures[together]["acceptance_by_position"]
        acceptance.plot(range(1, len(rates) + 1), rates, "o-", label=name)
    longest = max(len(figures[together]["acceptance_by_position"]) for figures in drafters.values())
    acceptance.set(title="drafts right if those before are", xlabel="position", ylim=(0, 1.05))
    acceptance.set_xticks(range(1, longest + 1, max(1, longest // 8)))
    figure.legend(*speed.get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize="small")
    figure.savefig(path)


def _draw_speed(axis: Axes, drafters: Mapping[str, Mapping[str, Mapping[str, Any]]], categories: Sequence[str]) -> None:
    width = 0.8 / len(drafters)
    for number, (name, figures) in enumerate(drafters.items()):
        places = [index - 0.4 + (number + 0.5) * width for index in range(len(categories))]
        axis.bar(places, [figures[category]["speedup"] for category in categories], width * 0.9, label=name)
        theories = [figures[category]["theory"] for category in categories]
        known = [(place, theory["predicted"]) for place, theory in zip(places, theories, strict=True) if theory]
        label = "predicted, of decoding, if verifying were free" if number == 0 else None
        axis.plot([place for place, _ in known], [value for _, value in known], "kx", markersize=4, label=label)
    axis.axhline(1.0, color="grey", linestyle="--", linewidth=1)
    axis.set_xticks(range(len(categories)), categories, rotation=30, ha="right")
    axis.set(title="speed-up over no drafts")
