"""Logits processors: one call for all rows of a plugin, in each request's order; what breaks breaks one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import pytest
import torch
from torch import Tensor

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.logits_processor import (
    LogitsProcessor,
    LogitsProcessorConfig,
    LogitsProcessorContext,
    LogitsRow,
)
from tokenloom.sampling import AllowedTokens, SamplingBatch, SamplingRow, process_logits, sample, why_no_token
from tokenloom.sampling.processors import ProcessorTable, RowProcessors, StepProcessors
from tokenloom.sampling_params import SamplingParams

CPU = torch.device("cpu")
VOCAB = 4


class StepConfig(LogitsProcessorConfig):
    """logits := factor * logits + amount; amounts of 13 raise, and are NaN at 14, +inf at 15 and -inf at 16."""

    amount: float = 0.0
    factor: float = 1.0

    def build(self, context: LogitsProcessorContext) -> LogitsProcessor:
        assert (context.vocab_size, context.device) == (VOCAB, CPU)
        if self.amount == 99:
            raise RuntimeError("cannot be built")
        return Step()


@final
class Step(LogitsProcessor):
    """Notes how many rows each call has."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def process(self, logits: Tensor, rows: Sequence[LogitsRow]) -> None:
        self.calls.append(len(rows))
        for index, row in enumerate(rows):
            settings = row.settings
            assert isinstance(settings, StepConfig)
            logits[index].mul_(settings.factor).add_(settings.amount)
            if settings.amount == 13:
                raise ZeroDivisionError("thirteen")
            if settings.amount == 16:
                logits[index] = -torch.inf
            logits[index, 1] = {14.0: torch.nan, 15.0: torch.inf}.get(settings.amount, float(logits[index, 1]))


def processors_of(row: int, *steps: tuple[str, StepConfig]) -> RowProcessors:
    info = [LogitsRow(np.array([1], np.int32), 1, settings) for _, settings in steps]
    choices = [PluginChoice("logits_processor", name, settings) for name, settings in steps]
    return RowProcessors(row, tuple(zip(choices, info, strict=True)))


def batch_of(table: ProcessorTable, num_rows: int, *rows: RowProcessors) -> SamplingBatch:
    batch = SamplingBatch.build([SamplingRow(SamplingParams(temperature=0), seed=0)] * num_rows, VOCAB)
    return batch.with_tokens(processors=StepProcessors.build(table, rows))


def counted(table: ProcessorTable, name: str) -> list[int]:
    processor = table.get(PluginChoice("logits_processor", name, StepConfig()))
    assert isinstance(processor, Step)
    return processor.calls


def test_rows_of_one_plugin_share_a_call_and_keep_their_settings() -> None:
    table = ProcessorTable(VOCAB, CPU)
    rows = [processors_of(row, ("a", StepConfig(amount=row))) for row in (0, 2, 3)]
    found = process_logits(torch.zeros(5, VOCAB), batch_of(table, 5, *rows))
    assert found[:, 0].tolist() == [0, 0, 2, 3, 0]
    assert counted(table, "a") == [3]


def test_each_request_has_its_own_order() -> None:
    table = ProcessorTable(VOCAB, CPU)
    double, add = ("double", StepConfig(factor=2)), ("add", StepConfig(amount=3))
    batch = batch_of(table, 3, processors_of(0, double, add), processors_of(1, add, double), processors_of(2, add))
    assert process_logits(torch.ones(3, VOCAB), batch)[:, 0].tolist() == [5, 8, 4]
    assert counted(table, "double") == [1, 1]
    assert counted(table, "add") == [2, 1]


def test_engine_has_one_object_of_each_plugin() -> None:
    table = ProcessorTable(VOCAB, CPU)
    first = PluginChoice("logits_processor", "a", StepConfig(amount=1))
    assert table.get(first) is table.get(PluginChoice("logits_processor", "a", StepConfig(amount=2)))
    assert table.get(first) is not table.get(PluginChoice("logits_processor", "b", StepConfig(amount=1)))


@pytest.mark.parametrize(
    ("amount", "message"),
    [
        (13, "plugin logits_processor=a failed at output position 0: ZeroDivisionError: thirteen"),
        (14, "plugin logits_processor=a wrote NaN or +inf at output position 0"),
        (15, "plugin logits_processor=a wrote NaN or +inf at output position 0"),
        (16, "no token can be sampled at output position 0: every token is forbidden by logits_processor=a"),
    ],
)
def test_broken_row_is_invalid_alone_and_its_plugin_is_named(amount: float, message: str) -> None:
    table = ProcessorTable(VOCAB, CPU)
    rows = [processors_of(row, ("a", StepConfig(amount=amount if row == 1 else row + 1))) for row in range(3)]
    batch = batch_of(table, 3, *rows)
    logits = torch.arange(VOCAB, dtype=torch.float32).repeat(3, 1)
    result = sample(logits, batch)
    assert result.invalid.tolist() == [False, True, False]
    assert result.token_ids.tolist() == [VOCAB - 1, 0, VOCAB - 1]
    assert process_logits(logits, batch)[[0, 2]].tolist() == [[1, 2, 3, 4], [3, 4, 5, 6]]
    assert why_no_token(logits, batch, None, 1) == message


def test_plugin_that_cannot_be_built_fails_its_rows() -> None:
    batch = batch_of(ProcessorTable(VOCAB, CPU), 2, processors_of(1, ("a", StepConfig(amount=99))))
    assert sample(torch.zeros(2, VOCAB), batch).invalid.tolist() == [False, True]
    assert "RuntimeError: cannot be built" in why_no_token(torch.zeros(2, VOCAB), batch, None, 1)


def test_logits_that_were_broken_before_are_not_blamed_on_the_plugin() -> None:
    logits = torch.full((1, VOCAB), torch.nan)
    batch = batch_of(ProcessorTable(VOCAB, CPU), 1, processors_of(0, ("a", StepConfig(amount=1))))
    assert why_no_token(logits, batch, None, 0) == "no token can be sampled: the model's logits are not finite"


def test_processor_cannot_lift_what_is_forbidden() -> None:
    params = SamplingParams(temperature=0, allowed_token_ids=[1, 2])
    batch = SamplingBatch.build([SamplingRow(params, seed=0, bad_token_ids=(1,))] * 2, VOCAB)
    rows = [processors_of(row, ("a", StepConfig(amount=50.0))) for row in range(2)]
    batch = batch.with_tokens(processors=StepProcessors.build(ProcessorTable(VOCAB, CPU), rows))
    logits = torch.zeros(2, VOCAB)
    assert process_logits(logits, batch).isneginf().tolist() == [[True, True, False, True]] * 2
    allowed = AllowedTokens(torch.tensor([1]), torch.tensor([[True, True, False, True]]))
    assert sample(logits, batch, allowed).invalid.tolist() == [False, True]


def test_selected_rows_take_their_processors_along() -> None:
    rows = [processors_of(row, ("a", StepConfig(amount=row))) for row in (1, 3)]
    batch = batch_of(ProcessorTable(VOCAB, CPU), 4, *rows)
    assert process_logits(torch.zeros(3, VOCAB), batch.select([3, 0, 1], [0] * 3))[:, 0].tolist() == [3, 0, 1]
    assert batch.select([0, 2], [0, 0]).processors is None
