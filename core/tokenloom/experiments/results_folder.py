"""The folder of an experiment: one JSON file for each run, written as soon as it has ended, and the joined tables."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, final

from tokenloom.bench.provenance import provenance
from tokenloom.errors import ConfigError
from tokenloom.experiments.figures import PointResult, csv_table, markdown_table
from tokenloom.experiments.points import ExperimentPoint
from tokenloom.output_files import output_fault

__all__ = ["ResultsFolder", "default_folder"]

_LONGEST_NAME = 120
"""Characters of a file's name; file systems end at 255 bytes."""
_UNSAFE = re.compile(r"[^\w.=,-]+")


def default_folder() -> Path:
    """Where results go if nobody says where, as in Hydra: multirun/DATE/TIME, in UTC."""
    return Path("multirun") / f"{datetime.now(UTC):%Y-%m-%d/%H-%M-%S}"


@final
class ResultsFolder:
    """A folder that holds one experiment and nothing else.

    Raises:
        ConfigError: there is something in it already, or it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"output={path} exists and is no empty folder; name a new one")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"output={path} cannot be made: {error.strerror or error}") from error
        fault = output_fault(path / "results.csv")
        if fault is not None:
            raise ConfigError(f"output={path}: results.csv in it: {fault}")
        self.path = path

    def write_run(self, point: ExperimentPoint, result: Mapping[str, Any] | None, error: str | None) -> PointResult:
        """Writes what came of a point: its figures, or why there are none."""
        name = f"{point.index:03}_{_UNSAFE.sub('_', ','.join(point.name.split()))}"[:_LONGEST_NAME]
        outcome: dict[str, Any] = dict(result) if result is not None else {"error": error}
        data = {
            "name": point.name,
            "changes": dict(point.changes),
            **outcome,
            "config": point.config.to_dict(),
            "provenance": provenance(),
        }
        text = json.dumps(data, indent=1, allow_nan=False) + "\n"
        (self.path / f"{name}.json").write_text(text, encoding="utf-8")
        return PointResult(point.name, point.changes, f"{name}.json", result, error)

    def write_tables(self, points: Sequence[PointResult], figures: Sequence[str]) -> None:
        """Writes results.csv, with every number, and results.md, with the named figures."""
        (self.path / "results.csv").write_text(csv_table(points), encoding="utf-8")
        (self.path / "results.md").write_text(markdown_table(points, figures), encoding="utf-8")
