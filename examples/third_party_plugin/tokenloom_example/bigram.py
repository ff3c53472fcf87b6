"""Drafter `bigram`: proposes the token that followed the last one when it last occurred in the same request.

From the guess it goes on in the same way, so a text that repeats itself is drafted several tokens ahead. It costs a
few dictionary look-ups a token and needs nothing from the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, final

import numpy as np
import numpy.typing as npt
from pydantic import Field
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.spec_decode import (
    DraftBatch,
    Drafter,
    DrafterContext,
    DrafterNeeds,
    Proposal,
    SpecDecodeConfig,
)

__all__ = ["BigramConfig", "BigramDrafter"]


@final
class BigramConfig(SpecDecodeConfig):
    """Settings of the bigram drafter."""

    min_count: Annotated[int, Field(ge=1)] = Field(
        default=1, description="How often a pair of tokens must have occurred before its second one is proposed."
    )
    policy: PluginChoice = Field(description="How many tokens to propose.")

    def draft_policy(self) -> PluginChoice | None:
        # The core builds and asks it. So draft lengths are the policy's business, not the drafter's.
        return self.policy

    def build(self, context: DrafterContext) -> Drafter:
        return BigramDrafter(self.min_count)


@dataclass(slots=True)
class _History:
    """What one request has taught so far.

    Attributes:
        followers: per token, the one that followed it last.
        counts: how often each pair of neighbours occurred.
        num_read: tokens read.
    """

    followers: dict[int, int] = field(default_factory=dict)
    counts: Counter[tuple[int, int]] = field(default_factory=Counter)
    num_read: int = 0

    def read(self, token_ids: npt.NDArray[np.int32]) -> None:
        """Learns the pairs that are new since the last call."""
        # Only what is new: reading a whole sequence in every step would make each step slower than the one before.
        pairs = list(pairwise(token_ids[max(0, self.num_read - 1) :].tolist()))
        self.followers.update(pairs)
        self.counts.update(pairs)
        self.num_read = len(token_ids)


@final
class BigramDrafter(Drafter):
    """Keeps a table of followers for each request, never shared between requests.

    A proposal may depend on nothing but its own request: otherwise what a user reads would tell about other users, and
    a run could not be repeated.
    """

    def __init__(self, min_count: int) -> None:
        self._min_count = min_count
        self._histories: dict[str, _History] = {}

    def needs(self) -> DrafterNeeds:
        return DrafterNeeds()

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        return [
            self._draft(request_id, token_ids, max_drafts)
            for request_id, token_ids, max_drafts in zip(
                batch.request_ids, batch.token_ids, batch.max_drafts, strict=True
            )
        ]

    def forget(self, request_ids: Sequence[str]) -> None:
        # Called for preempted requests, too: they come back with all their tokens and are read from the start.
        for request_id in request_ids:
            self._histories.pop(request_id, None)

    def _draft(self, request_id: str, token_ids: npt.NDArray[np.int32], max_drafts: int) -> Proposal:
        history = self._histories.setdefault(request_id, _History())
        history.read(token_ids)
        drafts: list[int] = []
        token_id = int(token_ids[-1])
        while len(drafts) < max_drafts:
            follower = history.followers.get(token_id)
            if follower is None or history.counts[token_id, follower] < self._min_count:
                break
            drafts.append(follower)
            token_id = follower
        # An empty proposal is legal, and wrong drafts cost time only: the core verifies every one.
        return Proposal(tuple(drafts))
