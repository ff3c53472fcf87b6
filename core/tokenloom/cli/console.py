"""Where commands print: tables with rich, JSON as it is."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from tokenloom.cli.stacked_table import shape_of, stacked_lines

__all__ = ["make_console", "print_json", "print_table"]

_PIPE_WIDTH = 200
"""Characters of a line where the output is no terminal; rich would cut at 80."""
_EDGES = 2
"""Characters that the edges of a table take."""


def make_console() -> Console:
    """A console on stdout that prints text as it is: no markup, no highlighting."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, markup=False, highlight=False, emoji=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Prints a table of text cells. Names are never wrapped; what does not fit goes below each row."""
    console, cells = make_console(), [tuple(row) for row in rows]
    shape = shape_of(columns, cells, console.width - _EDGES)
    if shape.widths is None:
        _print_stacked(console, columns, cells, shape.num_heads, title)
        return
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column, width in zip(columns, shape.widths, strict=True):
        table.add_column(column, width=width)
    for row in cells:
        table.add_row(*row)
    console.print(table)


def _print_stacked(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], num_heads: int, title: str | None
) -> None:
    header, lines = stacked_lines(columns, rows, num_heads, console.width - _EDGES)
    console.print()
    if title is not None:
        console.print(title, style="italic")
    # A name that is longer than the line is left to the terminal, so that it can still be copied in one piece.
    for line, style in ((header, "bold"), ("\N{BOX DRAWINGS LIGHT HORIZONTAL}" * (console.width - _EDGES), None)):
        console.print(f" {line}", style=style, soft_wrap=True)
    for line in lines:
        console.print(f" {line}", soft_wrap=True)
    console.print()


def print_json(data: Any) -> None:
    """Prints indented JSON; NaN and infinities are refused, as they are no JSON."""
    click.echo(json.dumps(data, indent=2, allow_nan=False))
