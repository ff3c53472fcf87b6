"""Tables that stay readable where they do not fit: what is too much for the width goes below each row."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

__all__ = ["GAP", "TableShape", "shape_of", "stacked_lines"]

GAP = 3
"""Characters between two columns, as rich draws them."""
_LEAST_PROSE = 24
"""A column of text that is narrower reads badly."""
_INDENT = 4
_LEAST_TEXT = 20
"""Text of a line below is never cut narrower, however narrow the terminal."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """How a table is drawn.

    Attributes:
        widths: of each column in characters; one whose text is wider wraps at words. None: it does not fit and is
            stacked.
        num_heads: columns that stand side by side if it is stacked.
    """

    widths: tuple[int, ...] | None
    num_heads: int


def shape_of(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> TableShape:
    """Decides how a table fits into `width` characters without a word being cut.

    Only columns whose cells are texts of several words may wrap: names are for copying.
    """
    natural = [_most(cell_len(text) for text in cells) for cells in _by_column(columns, rows)]
    words = [_most(cell_len(word) for text in cells for word in text.split()) for cells in _by_column(columns, rows)]
    least = [
        whole if whole == word else min(whole, max(word, _LEAST_PROSE))
        for whole, word in zip(natural, words, strict=True)
    ]
    room = width - GAP * (len(columns) - 1)
    num_heads = 1
    while num_heads < len(columns) and sum(natural[: num_heads + 1]) + GAP * num_heads <= width:
        num_heads += 1
    if sum(least) > room:
        return TableShape(None, num_heads)
    widths = list(least)
    for column in sorted(range(len(columns)), key=lambda column: natural[column]):
        # The narrow ones first: to be whole, they need the least.
        widths[column] = min(natural[column], widths[column] + room - sum(widths))
    return TableShape(tuple(widths), num_heads)


def stacked_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str]], num_heads: int, width: int
) -> tuple[str, list[str]]:
    """The header and the lines of a stacked table: the first columns side by side, the others named below."""
    heads = [_most(cell_len(text) for text in cells) for cells in _by_column(columns, rows)[:num_heads]]
    label = _most(cell_len(name) for name in columns[num_heads:])
    lines: list[str] = []
    for row in rows:
        lines.append(_side_by_side(row[:num_heads], heads))
        for name, text in zip(columns[num_heads:], row[num_heads:], strict=True):
            if text:
                lines += _below(name, text, label, width)
    return _side_by_side(columns[:num_heads], heads), lines


def _side_by_side(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [text + " " * (width - cell_len(text)) for text, width in zip(cells, widths, strict=True)]
    return (" " * GAP).join(padded).rstrip()


def _below(name: str, text: str, label: int, width: int) -> list[str]:
    first = " " * _INDENT + (name + " " * (label - cell_len(name)) + "  " if label else "")
    return [
        line
        for number, part in enumerate(text.splitlines())
        for line in textwrap.wrap(
            part,
            width=max(width, len(first) + _LEAST_TEXT),
            initial_indent=" " * len(first) if number else first,
            subsequent_indent=" " * len(first),
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


def _by_column(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[name, *(line for row in rows for line in row[index].splitlines())] for index, name in enumerate(columns)]


def _most(lengths: Iterable[int]) -> int:
    return max(lengths, default=0)
