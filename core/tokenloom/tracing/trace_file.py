"""Reads decision traces, record by record. Every record is as `record_schema` says, or the line is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from tokenloom.errors import ConfigError
from tokenloom.tracing.record_schema import header_fault, record_fault
from tokenloom.tracing.recorder import TRACE_FORMAT, TRACE_VERSION
from tokenloom.tracing.records import Record

__all__ = ["TraceFile"]


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
            ConfigError: it cannot be read, is no decision trace, or one of another version.
        """
        try:
            with path.open("rb") as lines:
                line = lines.readline()
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from error
        header = _parse(path, 1, line)
        if header.get("format") != TRACE_FORMAT:
            raise ConfigError(f"{path}:1: no decision trace; write one with trace.file=FILE")
        if header.get("version") != TRACE_VERSION:
            raise ConfigError(
                f"{path}:1: a trace of version {header.get('version')}, this tokenloom reads version {TRACE_VERSION}; "
                "record it anew"
            )
        trace = TraceFile(path, header)
        fault = header_fault(header)
        if fault is not None:
            raise trace.fault(1, fault)
        return trace

    def records(self) -> Iterator[Record]:
        """Every record behind the header, in order. A last line that was cut off by a crash is left out.

        Raises:
            ConfigError: a line is no record; names the field at fault.
        """
        return (record for _, record in self.numbered_records())

    def numbered_records(self) -> Iterator[tuple[int, Record]]:
        """The same with the numbers of their lines."""
        with self.path.open("rb") as lines:
            next(lines)
            for number, line in enumerate(lines, 2):
                if not line.endswith(b"\n"):
                    return
                record = _parse(self.path, number, line)
                fault = record_fault(record)
                if fault is not None:
                    raise self.fault(number, fault)
                yield number, record

    def fault(self, number: int, text: str) -> ConfigError:
        """The error of a line that is not as it was written; `text` says what is wrong with it."""
        return ConfigError(f"{self.path}:{number}: {text}; the trace is damaged, record it anew")


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}:{number}: no JSON object: {error}; is it a decision trace?") from error
    if not isinstance(record, dict):
        raise ConfigError(f"{path}:{number}: no JSON object but a {type(record).__name__}; is it a decision trace?")
    return record
