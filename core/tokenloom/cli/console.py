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

__all__ = ["make_console", "print_json", "print_table"]

_PIPE_WIDTH = 200
"""Characters of a line where the output is no terminal; rich would cut at 80."""


def make_console() -> Console:
    """A console on stdout that prints text as it is: no markup, no highlighting."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, markup=False, highlight=False, emoji=False)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Prints a table of text cells."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    make_console().print(table)


def print_json(data: Any) -> None:
    """Prints indented JSON; NaN and infinities are refused, as they are no JSON."""
    click.echo(json.dumps(data, indent=2, allow_nan=False))
