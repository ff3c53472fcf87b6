"""Runs the logits processors that requests named: one call per plugin and turn, for all rows that want it.

A request's processors run in its own order: in the first turn every request's first one, in the second turn the second
ones, and so on. What a processor breaks is confined to the rows that it broke.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.logits_processor import (
    LogitsProcessor,
    LogitsProcessorConfig,
    LogitsProcessorContext,
    LogitsRow,
)

__all__ = ["ProcessorCall", "ProcessorTable", "RowProcessors", "StepProcessors", "settings_of"]


@final
@dataclass(frozen=True, slots=True)
class RowProcessors:
    """A logits row and the processors that its request named, each with what it is told of the row."""

    row: int
    processors: Sequence[tuple[PluginChoice, LogitsRow]]


@final
class ProcessorTable:
    """The processors of one engine, built when a request first names them."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._context = LogitsProcessorContext(vocab_size, device)
        self._built: dict[str, LogitsProcessor] = {}

    def get(self, choice: PluginChoice) -> LogitsProcessor:
        """The one object of a plugin's name."""
        processor = self._built.get(choice.name)
        if processor is None:
            processor = self._built[choice.name] = choice.build(self._context)
        return processor


@final
@dataclass(frozen=True, slots=True)
class ProcessorCall:
    """One plugin's turn in a step: which rows it changes, and what it is told of each."""

    table: ProcessorTable
    choice: PluginChoice
    rows: Sequence[int]
    infos: Sequence[LogitsRow]

    @property
    def plugin(self) -> str:
        """How messages name it."""
        return f"{self.choice.kind}={self.choice.name}"

    def apply(self, logits: Tensor) -> dict[int, str]:
        """Changes fp32 logits [R, V] in place. Rows that the processor breaks become NaN.

        Returns:
            Row -> the exception that it raised there.
        """
        index = torch.tensor(self.rows, device=logits.device)
        before = logits[index]  # [len(rows), V]
        after = before.clone()
        failed = self._process(after, self.infos)
        errors: dict[int, str] = {}
        if failed is not None:
            # One request must not fail for another one's sake: each row once more, by itself.
            for i, row in enumerate(self.rows):
                after[i] = before[i]
                failed = self._process(after[i : i + 1], self.infos[i : i + 1])
                if failed is not None:
                    errors[row] = failed
                    after[i] = float("nan")
        best = after.amax(dim=-1, keepdim=True)  # NaN if any number is
        logits[index] = after.masked_fill_(best.isnan() | (best == float("inf")), float("nan"))
        return errors

    def _process(self, logits: Tensor, infos: Sequence[LogitsRow]) -> str | None:
        """Calls the plugin; returns what it raised."""
        try:
            self.table.get(self.choice).process(logits, infos)
        except Exception as error:  # noqa: BLE001 - a plugin may fail in any way; the request ends with this message
            return f"{type(error).__name__}: {error}"
        return None


@final
@dataclass(frozen=True, slots=True)
class StepProcessors:
    """All that logits processors do in one step.

    Attributes:
        table: the processors.
        rows: which rows want which of them.
        calls: what follows from it, in order.
    """

    table: ProcessorTable
    rows: tuple[RowProcessors, ...]
    calls: tuple[ProcessorCall, ...]

    @classmethod
    def build(cls, table: ProcessorTable, rows: Sequence[RowProcessors]) -> StepProcessors | None:
        """Orders the calls that some rows of a step need; None if there are no such rows."""
        return cls(table, tuple(rows), tuple(_calls(table, rows))) if rows else None

    def select(self, rows: Sequence[int]) -> StepProcessors | None:
        """Those of a batch whose row i is this one's row rows[i]; None if none are left."""
        by_row = {row.row: row for row in self.rows}
        chosen = [replace(by_row[row], row=place) for place, row in enumerate(rows) if row in by_row]
        return self.build(self.table, chosen)


def _calls(table: ProcessorTable, rows: Sequence[RowProcessors]) -> Iterator[ProcessorCall]:
    for turn in range(max(len(row.processors) for row in rows)):
        by_name: dict[str, list[tuple[int, PluginChoice, LogitsRow]]] = {}
        for row in rows:
            if turn < len(row.processors):
                choice, info = row.processors[turn]
                by_name.setdefault(choice.name, []).append((row.row, choice, info))
        for entries in by_name.values():
            yield ProcessorCall(table, entries[0][1], [row for row, _, _ in entries], [info for _, _, info in entries])


def settings_of(choice: PluginChoice) -> LogitsProcessorConfig:
    """The validated settings of a chosen processor."""
    config = choice.config
    assert isinstance(config, LogitsProcessorConfig), f"{choice.name}: settings of type {type(config).__name__}"
    return config
