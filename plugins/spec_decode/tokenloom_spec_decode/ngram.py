"""Prompt lookup: finds the last tokens earlier in the same sequence and proposes what followed them there.

Keeps no state: one comparison over the sequence finds every earlier place of the last token, and only those are looked
at further. Source: Saxena, Prompt Lookup Decoding (2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, final

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.spec_decode import (
    DraftBatch,
    Drafter,
    DrafterContext,
    DrafterNeeds,
    Proposal,
    SpecDecodeConfig,
)

__all__ = ["NgramConfig", "NgramDrafter", "continue_repetition"]


@final
class NgramConfig(SpecDecodeConfig):
    """Settings of `spec_decode=ngram`."""

    min_n: Annotated[int, Field(ge=1)] = Field(default=2, description="Shortest run of last tokens to look for.")
    max_n: Annotated[int, Field(ge=1)] = Field(
        default=4, description="Longest run of last tokens to look for; the longest that occurred before counts."
    )
    policy: PluginChoice = Field(description="How many tokens to propose.")

    @model_validator(mode="after")
    def _check_order(self) -> NgramConfig:
        if self.max_n < self.min_n:
            raise ValueError(f"max_n must be at least min_n={self.min_n}, got {self.max_n}")
        return self

    def draft_policy(self) -> PluginChoice | None:
        return self.policy

    def build(self, context: DrafterContext) -> NgramDrafter:
        return NgramDrafter(self.min_n, self.max_n)


@final
class NgramDrafter(Drafter):
    """Proposes the continuation of the longest repeated suffix, of its latest occurrence if there are several."""

    def __init__(self, min_n: int, max_n: int) -> None:
        self._min_n = min_n
        self._max_n = max_n

    def needs(self) -> DrafterNeeds:
        return DrafterNeeds()

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        return [
            Proposal(continue_repetition(token_ids, self._min_n, self._max_n, max_drafts))
            for token_ids, max_drafts in zip(batch.token_ids, batch.max_drafts, strict=True)
        ]

    def forget(self, request_ids: Sequence[str]) -> None:
        """Keeps no state."""


def continue_repetition(token_ids: npt.NDArray[np.int32], min_n: int, max_n: int, max_drafts: int) -> tuple[int, ...]:
    """Finds the longest suffix of min_n to max_n tokens that occurs earlier, and what followed it there.

    Args:
        token_ids: int32 [L].
        min_n, max_n: shortest and longest suffix that counts.
        max_drafts: most tokens to return.

    Returns:
        Of the latest earlier occurrence, up to max_drafts tokens that followed; () without one. The occurrence may
        overlap the suffix: a repetition that runs up to the end is continued with its own period.
    """
    last = len(token_ids) - 1
    if max_drafts < 1 or last < min_n:
        return ()
    # ends: indices of the last token of each earlier occurrence, in increasing order; a longer suffix keeps fewer.
    ends = np.flatnonzero(token_ids[:last] == token_ids[last])
    for length in range(2, max_n + 1):
        offset = length - 1
        longer = ends[np.searchsorted(ends, offset) :]
        longer = longer[token_ids[longer - offset] == token_ids[last - offset]]
        if len(longer) == 0:
            if length <= min_n:
                return ()
            break
        ends = longer
    if len(ends) == 0:
        return ()
    period = last - int(ends[-1])
    repeated = token_ids[last + 1 - period :].tolist()  # what followed, up to the end of the sequence
    return tuple(repeated[index % period] for index in range(max_drafts))
