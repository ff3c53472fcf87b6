"""Calls of a logits processor on memory with guards around, for the suite of this kind: what goes in, what came out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import numpy.typing as npt
import torch

from tokenloom.interfaces.logits_processor import LogitsProcessor, LogitsProcessorConfig, LogitsRow

__all__ = ["GUARD", "GuardedCall", "ProcessorCase", "same_numbers"]

GUARD = 12345.0
"""What stands in the logits that are not the processor's."""
_MARGIN = 3


@final
@dataclass(frozen=True, slots=True)
class ProcessorCase:
    """One row: its tokens, of which the first are the prompt, its settings and its logits, fp32 [V] on the CPU."""

    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    settings: LogitsProcessorConfig
    logits: torch.Tensor

    def with_tokens(self, token_ids: Sequence[int]) -> ProcessorCase:
        """The same row with other tokens."""
        return replace(self, token_ids=tuple(token_ids))

    def __str__(self) -> str:
        return (
            f"tokens {list(self.token_ids)}, the first {self.num_prompt_tokens} of them the prompt, "
            f"settings {self.settings!r}"
        )


@final
class GuardedCall:
    """What one call of `process` is given.

    Attributes:
        memory: int32 [R, longest + margins], where the tokens lie; everything else in it is `filler`.
        rows: R views of it, read-only as the core's are.
        buffer: fp32 [R + 2, V]: a row of guards, the R rows of logits, a row of guards.
    """

    def __init__(
        self,
        cases: Sequence[ProcessorCase],
        device: torch.device,
        filler: int = 0,
        memory: npt.NDArray[np.int32] | None = None,
    ) -> None:
        """With `memory`, an array of an earlier call with sequences of the same lengths, that one is used again."""
        self.cases = tuple(cases)
        longest = max(len(case.token_ids) for case in cases)
        if memory is None:
            memory = np.empty((len(cases), longest + 2 * _MARGIN), np.int32)
        memory[:] = filler
        self.memory = memory
        self.rows: list[LogitsRow] = []
        for slot, case in zip(memory, cases, strict=True):
            slot[_MARGIN : _MARGIN + len(case.token_ids)] = case.token_ids
        for index, case in enumerate(cases):
            tokens = memory[index, _MARGIN : _MARGIN + len(case.token_ids)]
            tokens.flags.writeable = False
            self.rows.append(LogitsRow(tokens, case.num_prompt_tokens, case.settings))
        guards = torch.full((1, len(cases[0].logits)), GUARD)
        self.buffer = torch.cat([guards, torch.stack([case.logits for case in cases]), guards]).to(device)

    def run(self, processor: LogitsProcessor) -> torch.Tensor:
        """Calls the processor, as the core does without autograd; returns the logits afterwards, fp32 [R, V], CPU."""
        with torch.inference_mode():
            processor.process(self.buffer[1:-1], self.rows)
        return self.buffer[1:-1].cpu().clone()


def same_numbers(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors hold the same numbers; NaN equals NaN, so that it is reported where it is looked for."""
    return bool(((first == second) | (first.isnan() & second.isnan())).all())
