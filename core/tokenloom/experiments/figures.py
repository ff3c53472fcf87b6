"""Figures of a result by their dotted names, and the joined table of all points."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenloom.errors import ConfigError, did_you_mean

__all__ = ["DEFAULT_FIGURES", "PointResult", "check_figures", "csv_table", "figure", "markdown_table", "table_rows"]

DEFAULT_FIGURES = (
    "duration_s",
    "output_tok_s",
    "latency.ttft_s.p50",
    "latency.ttft_s.p99",
    "latency.tpot_s.p50",
    "latency.itl_s.p99",
    "hit_ratio",
    "num_preemptions",
)
"""Columns of the table where an experiment names none; real and simulated runs have all of them."""

_NOT_FIGURES = frozenset({"config", "provenance"})
_SOMETIMES = (
    "by_tenant.",
    "by_priority.",
    "by_targets.",
    "fairness.",
    "engine.times_s.",
    "engine.accepted_by_position.",
    "engine.tried_by_position.",
)
"""Where names begin that one result of an experiment may have, and another may not."""


@dataclass(frozen=True, slots=True)
class PointResult:
    """What came of one point.

    Attributes:
        name: of the point.
        changes: the swept keys with their values.
        file: name of its JSON file in the results folder.
        result: the figures; None if it failed.
        error: why it failed; None if it did not.
    """

    name: str
    changes: Mapping[str, str]
    file: str
    result: Mapping[str, Any] | None
    error: str | None


def figure(result: Mapping[str, Any], name: str) -> Any:
    """The value at a dotted name such as "latency.ttft_s.p99"; None where the result has none."""
    value: Any = result
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return None if isinstance(value, Mapping) else value


def check_figures(points: Sequence[PointResult], figures: Sequence[str], *, more_to_come: bool = False) -> None:
    """Raises ConfigError for a figure that no result knows; nothing is said where every point failed.

    If there are `more_to_come` of the same kind, only for one that they cannot have either.
    """
    known = {name for point in points if point.result is not None for name, _ in _leaves(point.result)}
    unknown = [name for name in figures if known and name not in known]
    if more_to_come:
        unknown = [name for name in unknown if not name.startswith(_SOMETIMES)]
    if unknown:
        raise ConfigError(
            f"figures={unknown[0]}: no result has it.{did_you_mean(unknown[0], known)} results.csv lists all of them"
        )


def table_rows(points: Sequence[PointResult], figures: Sequence[str]) -> list[tuple[str, ...]]:
    """One row for each point, as text: its name and the figures, or the word "failed"."""
    rows: list[tuple[str, ...]] = []
    for point in points:
        if point.result is None:
            rows.append((point.name, "failed", *["-"] * (len(figures) - 1)))
        else:
            rows.append((point.name, *(_text(figure(point.result, name)) for name in figures)))
    return rows


def markdown_table(points: Sequence[PointResult], figures: Sequence[str]) -> str:
    """The same as a Markdown table."""
    lines = [("configuration", *figures), ("---",) * (len(figures) + 1), *table_rows(points, figures)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def csv_table(points: Sequence[PointResult]) -> str:
    """All figures of all points: a row each, a column for each swept key and for each number of the results."""
    keys = dict.fromkeys(key for point in points for key in point.changes)
    leaves = [dict(_leaves(point.result or {})) for point in points]
    names = dict.fromkeys(name for row in leaves for name in row)
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(["configuration", "file", "status", "error", *keys, *names])
    for point, row in zip(points, leaves, strict=True):
        status = "failed" if point.result is None else "done"
        cells = [row.get(name) for name in names]
        writer.writerow([point.name, point.file, status, point.error, *map(point.changes.get, keys), *cells])
    return target.getvalue()


def _leaves(result: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of all numbers and texts; lists, the configuration and the provenance left out."""
    for name, value in result.items():
        if isinstance(value, Mapping):
            if prefix or name not in _NOT_FIGURES:
                yield from _leaves(value, f"{prefix}{name}.")
        elif not isinstance(value, list | tuple):
            yield prefix + name, value


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
