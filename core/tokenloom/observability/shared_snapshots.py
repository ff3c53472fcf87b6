"""Snapshots of several front ends in one folder, so that any of them can tell what all of them counted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import cast, final

from tokenloom.observability.metric_store import Snapshot
from tokenloom.observability.metric_table import METRICS

__all__ = ["SnapshotFolder"]


@final
class SnapshotFolder:
    """A file for each front end, written by it alone and replaced as a whole. Files need no process to be alive."""

    def __init__(self, folder: Path, index: int) -> None:
        """`index` is this process's number, which its successor takes over if it dies."""
        self._folder = folder
        self._own = folder / f"front_end_{index}.json"

    def inherited(self) -> Snapshot:
        """What an earlier process of this number had counted: a sum over all that shrinks would look like a reset.

        Gauges tell of what is, so they are left out.
        """
        if not self._own.exists():
            return {}
        known = _read(self._own)
        return {name: children for name, children in known.items() if METRICS[name].kind != "gauge"}

    def publish(self, snapshot: Snapshot) -> None:
        """Writes this front end's values."""
        draft = self._own.with_suffix(".draft")
        draft.write_text(json.dumps(snapshot), encoding="utf-8")
        os.replace(draft, self._own)

    def others(self) -> list[Snapshot]:
        """What the other front ends published last."""
        return [_read(path) for path in sorted(self._folder.glob("front_end_*.json")) if path != self._own]


def _read(path: Path) -> Snapshot:
    return cast(Snapshot, json.loads(path.read_text(encoding="utf-8")))
