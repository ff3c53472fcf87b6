"""A small logits processor with a switch for each kind of bug that the conformance suite must catch.

Import it as `from tests.testing.planted_logits_processor import PLANTED`. With `bug="none"` it is right: it lowers the
logits of the tokens so far, once for each time that they stand there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated, Any, Literal, final

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from tokenloom.interfaces.contract import PluginInfo
from tokenloom.interfaces.logits_processor import (
    LogitsProcessor,
    LogitsProcessorConfig,
    LogitsProcessorContext,
    LogitsRow,
)

__all__ = ["PLANTED", "PLANTED_WITH_REQUIRED_SETTINGS", "PlantedConfig", "RequiredConfig", "processor_info"]


def processor_info(config: str, name: str = "planted") -> PluginInfo:
    """The declaration of a Config in this module."""
    target = f"tests.testing.planted_logits_processor:{config}"
    return PluginInfo("logits_processor", name, target, (1, 0), "A processor with a bug to choose.")


PLANTED = processor_info("PlantedConfig")
PLANTED_WITH_REQUIRED_SETTINGS = processor_info("RequiredConfig", "required")


@final
class PlantedConfig(LogitsProcessorConfig):
    """Which bug is in it, and settings that change results."""

    bug: str = "none"
    amount: Annotated[float, Field(ge=0)] = 1.5
    output_only: bool = False
    curve: Literal["straight", "square"] = "straight"

    def build(self, context: LogitsProcessorContext) -> LogitsProcessor:
        return Planted(self.bug, self, context.vocab_size)


@final
class RequiredConfig(LogitsProcessorConfig):
    """Has no defaults: `amount` is a whole number from 3 up, or nothing at all."""

    amount: Annotated[int, Field(ge=3)] | None
    word: str

    def build(self, context: LogitsProcessorContext) -> LogitsProcessor:
        return Planted("none", PlantedConfig(), context.vocab_size)


_Tokens = npt.NDArray[np.int32]


@final
class Planted(LogitsProcessor):
    """Lowers what was said before."""

    def __init__(self, bug: str, first: PlantedConfig, vocab_size: int) -> None:
        self._bug = bug
        self._first = first
        self._vocab_size = vocab_size
        self._num_calls = 0
        self._past: list[torch.Tensor] = []
        self._memo: dict[Any, torch.Tensor] = {}
        self._held: dict[int, tuple[_Tokens, int, torch.Tensor]] = {}

    def process(self, logits: torch.Tensor, rows: Sequence[LogitsRow]) -> None:
        bug = self._bug
        self._num_calls += 1
        if bug == "seeds the generator of all":
            torch.manual_seed(0)
        if bug == "keeps every call's logits":
            self._past.append(logits.clone())
        if bug == "clears what it was given before":
            for past in self._past:
                past.zero_()
            self._past = [logits]
        if bug == "works on a copy":
            logits = logits.clone()
        by_request: dict[Any, torch.Tensor] = {}
        for index, row in enumerate(rows):
            amounts = self._amounts(row, rows, by_request) * self._factor(index, rows)
            target = (index + 1) % len(rows) if bug == "writes the next row" else index
            logits[target] -= amounts.to(logits.device)
            self._break_numbers(logits[index], row)
        self._break_memory(logits, rows)

    def _amounts(self, row: LogitsRow, rows: Sequence[LogitsRow], by_request: dict[Any, torch.Tensor]) -> torch.Tensor:
        """What to subtract: fp32 [V]."""
        bug = self._bug
        if bug == "one answer for each request":
            prompt = row.token_ids[: row.num_prompt_tokens].tobytes()
            return by_request.setdefault((id(row.settings), prompt), self._curved(row, rows))
        if bug == "memo by length and last token":
            settings = row.settings
            key = (len(row.token_ids), row.num_prompt_tokens, int(row.token_ids[-1]), settings.model_dump_json())
            return self._memo.setdefault(key, self._curved(row, rows))
        if bug == "counts on where it stopped":
            return self._counted_on(row)
        if bug == "acts behind token 50 only" and 50 not in row.token_ids:
            return torch.zeros(self._vocab_size)
        return self._curved(row, rows)

    def _curved(self, row: LogitsRow, rows: Sequence[LogitsRow]) -> torch.Tensor:
        bug = self._bug
        settings = rows[0].settings if bug == "settings of the first row" else row.settings
        settings = self._first if bug == "settings of the first request" else settings
        if not isinstance(settings, PlantedConfig):
            settings = PlantedConfig()
        num_prompt_tokens = rows[0].num_prompt_tokens if bug == "prompt of the first row" else row.num_prompt_tokens
        tokens = self._tokens(row, rows)[num_prompt_tokens if settings.output_only else 0 :]
        if bug == "looks at the last output token" and row.token_ids[row.num_prompt_tokens :][-1] < 0:
            raise AssertionError("no token is below zero")
        counts = torch.bincount(torch.from_numpy(tokens.astype(np.int64)), minlength=self._vocab_size)
        return settings.amount * (counts.square() if settings.curve == "square" else counts).float()

    def _tokens(self, row: LogitsRow, rows: Sequence[LogitsRow]) -> _Tokens:
        bug, tokens = self._bug, row.token_ids
        if bug == "pads with token 0":
            longest = max(len(other.token_ids) for other in rows)
            return np.pad(tokens, (0, longest - len(tokens)))
        if bug == "expects a pair of tokens" and len(tokens) < 2:
            raise IndexError("no pair")
        base = tokens.base
        if bug == "reads behind the view" and isinstance(base, np.ndarray) and base.ndim == 2:
            flat = base.reshape(-1)
            start = (tokens.ctypes.data - flat.ctypes.data) // flat.itemsize
            return flat[start : start + len(tokens) + 1]
        return tokens

    def _factor(self, index: int, rows: Sequence[LogitsRow]) -> float:
        if self._bug == "by place":
            return 1.0 + index / 64
        if self._bug == "rounds in large batches":
            return 1.0 if len(rows) < 5 else 1.001
        if self._bug == "counts calls":
            return float(self._num_calls)
        return random.random() if self._bug == "draws numbers" else 1.0

    def _counted_on(self, row: LogitsRow) -> torch.Tensor:
        """Takes an address that it knows for a sequence that has grown."""
        settings = row.settings
        assert isinstance(settings, PlantedConfig)
        address = row.token_ids.ctypes.data
        _, start, counts = self._held.get(address, (row.token_ids, 0, torch.zeros(self._vocab_size)))
        first = max(start, row.num_prompt_tokens if settings.output_only else 0)
        new = torch.from_numpy(row.token_ids[first:].astype(np.int64))
        counts = counts + torch.bincount(new, minlength=self._vocab_size)
        self._held[address] = (row.token_ids, len(row.token_ids), counts)
        return settings.amount * (counts.square() if settings.curve == "square" else counts)

    def _break_numbers(self, logits: torch.Tensor, row: LogitsRow) -> None:
        """Logits of one row [V]."""
        bug = self._bug
        if bug == "subtracts the mean":
            logits -= logits.mean()
        if bug == "divides by the spread":
            logits /= logits.max() - logits[logits.isfinite()].min()
        if bug == "raises a token to inf" and len(row.token_ids) % 2 == 0:
            logits[0] = torch.inf
        if bug == "fails behind 64 tokens" and len(row.token_ids) > 64:
            logits.fill_(torch.nan)
        if bug == "clamps":
            logits.clamp_(min=-1e9)

    def _break_memory(self, logits: torch.Tensor, rows: Sequence[LogitsRow]) -> None:
        if self._bug == "writes what lies around":
            start, end = logits.storage_offset(), logits.storage_offset() + logits.numel()
            whole = torch.empty(0, device=logits.device).set_(logits.untyped_storage())
            whole[:start] = 0
            whole[end:] = 0
        if self._bug == "sorts the tokens":
            for row in rows:
                row.token_ids.flags.writeable = True
                row.token_ids.sort()
        if self._bug == "sorts the rows":
            assert isinstance(rows, list)
            rows.sort(key=lambda row: -len(row.token_ids))
        if self._bug == "writes to the settings":
            vars(rows[0].settings)["amount"] = 7.0
