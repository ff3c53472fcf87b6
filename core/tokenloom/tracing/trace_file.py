"""Reads decision traces, record by record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from tokenloom.errors import ConfigError
from tokenloom.tracing.recorder import TRACE_FORMAT, TRACE_VERSION
from tokenloom.tracing.records import Record

__all__ = ["EVENTS", "TraceFile"]

EVENTS = ("arrive", "end", "plan", "result")
"""What a record may be of; see docs/tracing.md."""


@final
@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace on disk, read as often as it is asked for.

    Attributes:
        header: format, version, seed, resolved config, facts of the model.
    """

    path: Path
    header: Record

    @staticmethod
    def open(path: Path) -> TraceFile:
        """Reads the header.

        Raises:
            ConfigError: it is no decision trace, or of another version.
            OSError: it cannot be read.
        """
        with path.open(encoding="utf-8") as lines:
            header = _parse(path, 1, lines.readline())
        if header.get("format") != TRACE_FORMAT:
            raise ConfigError(f"{path}: no decision trace; write one with trace.file=FILE")
        if header.get("version") != TRACE_VERSION:
            raise ConfigError(
                f"{path}: a trace of version {header.get('version')}, this tokenloom reads version {TRACE_VERSION}; "
                "record it anew"
            )
        return TraceFile(path, header)

    def records(self) -> Iterator[Record]:
        """Every record behind the header, in order. A last line that was cut off by a crash is left out.

        Raises:
            ConfigError: a line is no record.
        """
        with self.path.open(encoding="utf-8") as lines:
            next(lines)
            for number, line in enumerate(lines, 2):
                if not line.endswith("\n"):
                    return
                record = _parse(self.path, number, line)
                if record.get("event") not in EVENTS:
                    raise ConfigError(f"{self.path}:{number}: no record of {', '.join(EVENTS)}")
                yield record


def _parse(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}:{number}: no JSON object: {error}; is it a decision trace?") from error
    if not isinstance(record, dict):
        raise ConfigError(f"{path}:{number}: no JSON object but a {type(record).__name__}; is it a decision trace?")
    return record
