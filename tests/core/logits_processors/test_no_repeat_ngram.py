"""no_repeat_ngram against a plain reference: no run of `size` tokens appears twice."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tokenloom.interfaces.logits_processor import LogitsProcessorContext, LogitsRow
from tokenloom.logits_processors.no_repeat_ngram import NoRepeatNgramConfig

VOCAB = 6


def row_of(tokens: Sequence[int], settings: NoRepeatNgramConfig, num_prompt_tokens: int = 0) -> LogitsRow:
    return LogitsRow(np.array(tokens, np.int32), num_prompt_tokens, settings)


def forbidden(rows: Sequence[LogitsRow]) -> list[set[int]]:
    processor = NoRepeatNgramConfig(size=2).build(LogitsProcessorContext(VOCAB, torch.device("cpu")))
    logits = torch.zeros(len(rows), VOCAB)
    processor.process(logits, rows)
    assert set(logits.flatten().tolist()) <= {0.0, -torch.inf}
    return [set(row.isneginf().nonzero().flatten().tolist()) for row in logits]


def plain_forbidden(tokens: Sequence[int], size: int) -> set[int]:
    runs = {tuple(tokens[start : start + size]) for start in range(len(tokens) - size + 1)}
    end = tuple(tokens[len(tokens) - size + 1 :])
    return {token for token in range(VOCAB) if len(end) == size - 1 and (*end, token) in runs}


def test_random_sequences_equal_the_plain_reference() -> None:
    rng = random.Random(0)
    sequences = [[rng.randrange(VOCAB) for _ in range(rng.randrange(1, 25))] for _ in range(200)]
    sizes = [rng.randrange(1, 6) for _ in sequences]
    rows = [row_of(tokens, NoRepeatNgramConfig(size=size)) for tokens, size in zip(sequences, sizes, strict=True)]
    expected = [plain_forbidden(tokens, size) for tokens, size in zip(sequences, sizes, strict=True)]
    assert forbidden(rows) == expected
    assert sum(map(len, expected)) > 100


def test_repeated_run_is_completed_by_no_token() -> None:
    assert forbidden([row_of([1, 2, 3, 1, 2], NoRepeatNgramConfig(size=3))]) == [{3}]
    assert forbidden([row_of([1, 1, 1], NoRepeatNgramConfig(size=3))]) == [{1}]
    assert forbidden([row_of([4, 2], NoRepeatNgramConfig(size=1))]) == [{2, 4}]


def test_runs_of_the_prompt_count_only_if_wanted() -> None:
    tokens = [1, 2, 3, 1]
    settings = [NoRepeatNgramConfig(size=2, include_prompt=wanted) for wanted in (True, False)]
    assert forbidden([row_of(tokens, each, num_prompt_tokens=3) for each in settings]) == [{2}, set()]


@pytest.mark.parametrize("size", [2, 5, 10**9, 2**70])
def test_sequences_shorter_than_a_run_forbid_nothing(size: int) -> None:
    assert forbidden([row_of([1], NoRepeatNgramConfig(size=size))]) == [set()]


@pytest.mark.parametrize("size", [0, -1, 1.5, "2", True, None])
def test_sizes_that_are_no_length_are_refused(size: object) -> None:
    with pytest.raises(ValidationError):
        NoRepeatNgramConfig(size=size)  # type: ignore[arg-type]
