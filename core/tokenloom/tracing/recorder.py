"""Writes an engine's decision trace: a header, then a line for each record, as it happens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from tokenloom.engine_config import EngineConfig
from tokenloom.errors import ConfigError
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.executor import ModelFacts
from tokenloom.output_files import output_fault
from tokenloom.tracing.records import Record, facts_record
from tokenloom.tracing.tap import DecisionSink

__all__ = ["TRACE_FORMAT", "TRACE_VERSION", "TraceRecorder", "check_trace_target", "check_trace_targets"]

TRACE_FORMAT = "tokenloom.trace"
TRACE_VERSION = 1


def check_trace_target(file: str | None) -> None:
    """Refuses a trace.file that cannot be written, before a model is loaded. None, no trace, is fine.

    Raises:
        ConfigError: the file exists, or cannot be written.
    """
    if file is None:
        return
    path = Path(file)
    if path.exists():
        raise ConfigError(f"trace.file={file}: it exists; remove it, or name another one for this engine")
    fault = output_fault(path)
    if fault is not None:
        raise ConfigError(f"trace.file={file}: {fault}")


def check_trace_targets(files: Sequence[str | None]) -> None:
    """As `check_trace_target`, for engines that run one after the other. A trace is that of one engine.

    Raises:
        ConfigError: two of them name the same file, too.
    """
    seen: set[Path] = set()
    for file in files:
        check_trace_target(file)
        if file is None:
            continue
        if Path(file).absolute() in seen:
            raise ConfigError(
                f"trace.file={file}: several engines of this command would write to it; run them one at a time, each "
                "with a trace.file of its own"
            )
        seen.add(Path(file).absolute())


@final
class TraceRecorder(DecisionSink):
    """The file of one engine's trace."""

    def __init__(self, file: str, config: EngineConfig, facts: ModelFacts) -> None:
        # Written line by line: what led to a crash is what is wanted most.
        self._file = Path(file).open("x", encoding="utf-8", buffering=1)  # noqa: SIM115 - lives as long as the engine
        header = {
            "format": TRACE_FORMAT,
            "version": TRACE_VERSION,
            "seed": config.engine.seed,
            "config": {name: _plain(value) for name, value in config if name != "trace"},
            "facts": facts_record(facts),
        }
        self._file.write(json.dumps(header) + "\n")

    def take(self, event: str, record: Record) -> None:  # noqa: ARG002 - the record names it, too
        self._file.write(json.dumps(record, separators=(",", ":")) + "\n")

    def close(self) -> None:
        self._file.close()


def _plain(value: Any) -> Any:
    if isinstance(value, PluginChoice):
        return {"name": value.name, **_plain(value.config)}
    if isinstance(value, BaseModel):
        return {name: _plain(part) for name, part in value}
    return to_jsonable_python(value)
