"""The plot of variants: a panel for each figure that all of them have, with intervals where there are some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenloom.bench.plot_file import blank_figure
from tokenloom.experiments.figures import figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_variants"]

_PANELS: Mapping[str, str] = {
    "memory.weight_bytes": "weights, MB",
    "tasks.perplexity.perplexity": "perplexity",
    "tasks.perplexity.perplexity_ratio": "perplexity / the reference's",
    "tasks.perplexity.top1_agreement": "same likeliest token as the reference",
    "tasks.perplexity.kl_mean": "KL from the reference, nats",
    "tasks.multiple_choice.acc_norm": "multiple choice, acc_norm",
    "tasks.retrieval.accuracy": "retrieval",
    "speed.prefill_tok_s": "prefill, tokens/s",
    "speed.decode_tok_s": "decode, tokens/s",
}
_PANELS_IN_A_ROW = 3
_MAX_LABEL_LENGTH = 32


def draw_variants(variants: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draws results of `Evaluation.run` by variant, one at least, to a file."""
    results = list(variants.values())
    names = [name for name in _PANELS if all(figure(result, name) is not None for result in results)]
    num_columns = min(_PANELS_IN_A_ROW, len(names))
    num_rows = -(-len(names) // num_columns)
    page = blank_figure(4.8 * num_columns, (1.2 + 0.35 * len(results)) * num_rows)
    panels = page.subplots(num_rows, num_columns, squeeze=False).flatten()
    for panel, name in zip(panels, names, strict=False):
        _draw(panel, list(variants), results, name)
    for panel in panels[len(names) :]:
        panel.set_visible(False)
    page.savefig(path)


def _draw(panel: Axes, labels: Sequence[str], results: Sequence[Mapping[str, Any]], name: str) -> None:
    places = range(len(labels))
    unit = 1e6 if name.endswith("_bytes") else 1.0
    values = [float(figure(result, name)) / unit for result in results]
    panel.plot(values, places, "o")
    for place, result in zip(places, results, strict=True):
        interval = figure(result, f"{name}_interval")
        if interval is not None:
            panel.plot(interval, [place, place], "-", color="grey", linewidth=1)
    panel.set_yticks(places, [_short(label) for label in labels])
    panel.set_ylim(len(labels) - 0.5, -0.5)
    panel.tick_params(labelsize="x-small")
    panel.set_title(_PANELS[name], fontsize="small")
    panel.grid(axis="x", alpha=0.3)


def _short(label: str) -> str:
    return label if len(label) <= _MAX_LABEL_LENGTH else "…" + label[1 - _MAX_LABEL_LENGTH :]
