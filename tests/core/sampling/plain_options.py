"""Sampling options one row and one number at a time, in plain Python: what the batched code is compared with.

Import it as `from tests.core.sampling.plain_options import OptionRow`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tokenloom.sampling import RowHistory, SamplingBatch, SamplingRow, TokenHistory
from tokenloom.sampling_params import SamplingParams

__all__ = ["OptionRow", "batch_of", "plain_processed", "random_logits", "random_rows"]


@dataclass(frozen=True)
class OptionRow:
    """One position of a request. The last `num_drafts` tokens of the output are only assumed."""

    params: SamplingParams
    prompt: tuple[int, ...]
    output: tuple[int, ...] = ()
    stop_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    seed: int = 0
    num_drafts: int = 0

    @property
    def sampling_row(self) -> SamplingRow:
        single = tuple(word[0] for word in self.bad_words if len(word) == 1)
        return SamplingRow(self.params, self.seed, 0, len(self.output), self.stop_ids, single)

    @property
    def needs_history(self) -> bool:
        return self.params.has_penalties or any(len(word) > 1 for word in self.bad_words)

    def history(self, row: int) -> RowHistory:
        num_known = len(self.output) - self.num_drafts
        words = [word for word in self.bad_words if len(word) > 1]
        history = TokenHistory(self.params, [*self.prompt, *self.output[:num_known]], len(self.prompt), words)
        return RowHistory(row, history, self.output[num_known:])


def batch_of(rows: Sequence[OptionRow], vocab_size: int) -> SamplingBatch:
    """The rows as one batch."""
    batch = SamplingBatch.build([row.sampling_row for row in rows], vocab_size)
    return batch.with_tokens([row.history(index) for index, row in enumerate(rows) if row.needs_history])


def plain_processed(logits: Sequence[float], row: OptionRow) -> list[float]:
    """Logits after penalties, bias, allowed tokens, minimum length and bad words, straight from the documentation."""
    params, values = row.params, list(logits)
    for token_id in range(len(values)):
        if token_id in row.prompt or token_id in row.output:
            penalty = params.repetition_penalty
            values[token_id] = values[token_id] / penalty if values[token_id] > 0 else values[token_id] * penalty
        count = row.output.count(token_id)
        values[token_id] -= count * params.frequency_penalty
        if count > 0:
            values[token_id] -= params.presence_penalty
        values[token_id] += params.logit_bias.get(token_id, 0.0)
        if params.allowed_token_ids is not None and token_id not in params.allowed_token_ids:
            values[token_id] = -math.inf
        if len(row.output) < params.min_tokens and token_id in row.stop_ids:
            values[token_id] = -math.inf
        if any((*row.output, token_id)[-len(word) :] == word for word in row.bad_words):
            values[token_id] = -math.inf
    return values


def random_rows(num_rows: int, vocab_size: int, seed: int, **fixed: Any) -> list[OptionRow]:
    """Rows in which each option is on or off by chance, and every token of a short vocabulary repeats."""
    rng = random.Random(seed)

    def tokens(most: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocab_size) for _ in range(rng.randrange(most)))

    rows = []
    for index in range(num_rows):
        output = tokens(12)
        params: dict[str, Any] = {"max_tokens": 100, "temperature": rng.choice([0.0, 0.7, 1.0])}
        options = {
            "repetition_penalty": rng.choice([0.5, 1.3, 2.0]),
            "presence_penalty": rng.choice([-2.0, 0.4, 2.0]),
            "frequency_penalty": rng.choice([-0.3, 0.7, 2.0]),
            "logit_bias": {rng.randrange(vocab_size): rng.uniform(-5, 5) for _ in range(rng.randrange(1, 5))},
            "allowed_token_ids": [*tokens(vocab_size), *range(vocab_size // 2)],
            "min_tokens": rng.randrange(15),
            "top_k": rng.randrange(1, vocab_size + 2),
            "top_p": rng.choice([0.5, 0.9]),
            "min_p": rng.choice([0.01, 0.2]),
        }
        params |= {name: value for name, value in options.items() if rng.random() < 0.4}
        words = [output[-2:], output[-1:] + tokens(2), tokens(4), (0,), (1, 0), (*output[-2:], 3)]
        row = OptionRow(
            SamplingParams(**{**params, **fixed}),
            prompt=(rng.randrange(vocab_size), *tokens(9)),
            output=output,
            stop_ids=tuple(set(tokens(3))),
            bad_words=tuple(word for word in words if word and rng.random() < 0.4),
            seed=index * 13 - 5,
        )
        rows.append(replace(row, num_drafts=rng.randrange(len(output) + 1) if rng.random() < 0.3 else 0))
    return rows


def random_logits(num_rows: int, vocab_size: int, seed: int = 0) -> Tensor:
    """Of both signs, fp32 [num_rows, vocab_size]."""
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 3
