"""Tables of `tokenloom bench spec`: a line for each category and drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from tokenloom.cli.console import print_table

__all__ = ["COLUMNS", "print_drafters"]

COLUMNS = (
    "category",
    "drafter",
    "answers",
    "tokens/s",
    "speed-up",
    "decoding",
    "tokens/step",
    "accepted",
    "right by position",
    "drafting",
    "predicted",
)
"""Of the table; docs/speculation.md says what they hold."""
_MOST_POSITIONS = 8


def print_drafters(drafters: Mapping[str, Mapping[str, Any]], plain: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints the figures of `category_figures` by drafter, beside those without drafts, category by category."""
    rows: list[Sequence[str]] = []
    for category, figures in plain.items():
        rows.append((category, "none", str(figures["num_requests"]), f"{figures['output_tok_s']:.1f}", *[""] * 7))
        rows += [(category, name, *_cells(point["categories"][category])) for name, point in drafters.items()]
    print_table(COLUMNS, rows)
    for name, point in drafters.items():
        means, together = point["mean_of_categories"], list(point["categories"].values())[-1]
        click.echo(
            f"{name}: mean of categories {_with_spread(means['speedup'], means['speedups'])}, "
            f"decoding {_with_spread(means['decode_speedup'], means['decode_speedups'])}"
        )
        num_equal, num_all = together["num_equal_answers"], together["num_requests"]
        if num_equal < num_all:
            click.echo(
                f"{name}: {num_all - num_equal} of {num_all} answers differ from those without drafts. In fp32 none "
                "should; elsewhere rounding depends on how many tokens a step has (engine.deterministic=true)."
            )


def _cells(figures: Mapping[str, Any]) -> tuple[str, ...]:
    theory, num_drafts = figures["theory"], figures["num_draft_tokens"]
    rates = figures["acceptance_by_position"]
    return (
        f"{figures['num_equal_answers']}/{figures['num_requests']} equal",
        f"{figures['output_tok_s']:.1f}",
        _with_spread(figures["speedup"], figures["speedups"]),
        _with_spread(figures["decode_speedup"], figures["decode_speedups"]),
        f"{figures['acceptance_length']:.2f}",
        f"{figures['num_accepted_tokens']}/{num_drafts}",
        " ".join(f"{rate:.2f}" for rate in rates[:_MOST_POSITIONS]) + (" ..." if len(rates) > _MOST_POSITIONS else ""),
        f"{figures['drafting_share']:.1%}",
        "-" if theory is None else f"{theory['predicted']:.2f} ({theory['predicted_with_verification']:.2f})",
    )


def _with_spread(value: float, values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{value:.2f}"
    return f"{value:.2f} ({min(values):.2f}..{max(values):.2f})"
