"""Logits processor `no_repeat_ngram`: no run of `size` tokens appears twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from tokenloom.interfaces.logits_processor import (
    LogitsProcessor,
    LogitsProcessorConfig,
    LogitsProcessorContext,
    LogitsRow,
)

__all__ = ["NoRepeatNgram", "NoRepeatNgramConfig"]


class NoRepeatNgramConfig(LogitsProcessorConfig):
    """Settings of one request."""

    size: Annotated[int, Field(ge=1)] = Field(description="Length of the runs that must not repeat, tokens.")
    include_prompt: bool = Field(default=True, description="Whether runs of the prompt count, too.")

    def build(self, context: LogitsProcessorContext) -> LogitsProcessor:
        return NoRepeatNgram()


@final
class NoRepeatNgram(LogitsProcessor):
    """Forbids every token that once followed the same `size` - 1 tokens that the sequence ends with now."""

    def process(self, logits: torch.Tensor, rows: Sequence[LogitsRow]) -> None:
        for row, info in enumerate(rows):
            settings = info.settings
            assert isinstance(settings, NoRepeatNgramConfig), f"settings of another plugin: {settings!r}"
            tokens = info.token_ids if settings.include_prompt else info.token_ids[info.num_prompt_tokens :]
            followers = _followers(tokens, settings.size - 1)
            if len(followers) > 0:
                logits[row, torch.from_numpy(followers).to(logits.device)] = float("-inf")


def _followers(tokens: npt.NDArray[np.int32], length: int) -> npt.NDArray[np.int64]:
    """The tokens that stand behind earlier occurrences of the last `length` tokens."""
    num_starts = len(tokens) - length  # an occurrence needs one token behind it, which the last one lacks
    if num_starts <= 0:
        return np.zeros(0, np.int64)
    is_match = np.ones(num_starts, np.bool_)
    for offset in range(length):
        is_match &= tokens[offset : offset + num_starts] == tokens[num_starts + offset]
    return tokens[length:][is_match].astype(np.int64)
