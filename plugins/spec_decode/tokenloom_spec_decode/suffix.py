"""Suffix decoding: what followed the longest repeated suffix most often, in the sequence and in those before it.

Source: Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications" (2024).
"""

from __future__ import annotations

from collections import deque
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
from tokenloom_spec_decode.suffix_tree import SEPARATOR, TextLimits, draft_from

__all__ = ["SharedText", "SuffixConfig", "SuffixDrafter"]

_Tokens = npt.NDArray[np.int32]


@final
class SuffixConfig(SpecDecodeConfig):
    """Settings of `spec_decode=suffix`."""

    min_match: Annotated[int, Field(ge=1)] = Field(default=1, description="Shortest run of last tokens to look for.")
    max_match: Annotated[int, Field(ge=1, le=128)] = Field(
        default=32, description="Longest run of last tokens to look for; the longest that occurred counts."
    )
    drafts_per_match: Annotated[float, Field(gt=0.0)] = Field(
        default=2.0, description="Most drafts for each token of the run: a longer match is trusted further."
    )
    min_probability: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        default=0.1, description="Drafts less likely than that, by their counts, are left out."
    )
    tree: bool = Field(default=True, description="Draft several continuations where the attention can verify a tree.")
    shared_tokens: Annotated[int, Field(ge=0)] = Field(
        default=65536, description="Tokens of ended requests to look in, the oldest leave; 0 keeps requests apart."
    )
    policy: PluginChoice = Field(description="How many tokens to propose.")

    @model_validator(mode="after")
    def _check_order(self) -> SuffixConfig:
        if self.max_match < self.min_match:
            raise ValueError(f"max_match must be at least min_match={self.min_match}, got {self.max_match}")
        return self

    def draft_policy(self) -> PluginChoice | None:
        return self.policy

    def build(self, context: DrafterContext) -> SuffixDrafter:
        return SuffixDrafter(self)


@final
class SharedText:
    """The outputs of requests that ended, one behind the other; the oldest leave when there are too many tokens."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._lengths: deque[int] = deque()
        self.token_ids: _Tokens = np.empty(0, np.int32)

    def add(self, token_ids: _Tokens) -> None:
        """Appends a sequence; of one that is too long only the end."""
        kept = token_ids[max(0, len(token_ids) + 1 - self._max_tokens) :]
        self._lengths.append(len(kept) + 1)
        num_leaving, total = 0, len(self.token_ids) + len(kept) + 1
        while total - num_leaving > self._max_tokens:
            num_leaving += self._lengths.popleft()
        self.token_ids = np.concatenate((self.token_ids[num_leaving:], kept, np.array([SEPARATOR], np.int32)))


@final
class SuffixDrafter(Drafter):
    """Looks in the request's own tokens and in the shared text, and takes the drafts that promise more."""

    def __init__(self, config: SuffixConfig) -> None:
        self._config = config
        self._limits = TextLimits(config.min_match, config.max_match, config.drafts_per_match, config.min_probability)
        self._shared = SharedText(config.shared_tokens)
        self._seen: dict[str, _Tokens] = {}

    def needs(self) -> DrafterNeeds:
        return DrafterNeeds()

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        return [self._proposal(batch, place) for place in range(len(batch.request_ids))]

    def forget(self, request_ids: Sequence[str]) -> None:
        """Moves what the requests said to the shared text, up to the last tokens that the drafter was shown."""
        for request_id in request_ids:
            seen = self._seen.pop(request_id, None)
            if seen is not None:
                self._shared.add(seen)

    def _proposal(self, batch: DraftBatch, place: int) -> Proposal:
        token_ids, config = batch.token_ids[place], self._config
        if config.shared_tokens:
            # With the end of the prompt, so that the first tokens of an answer are found again, too.
            first = max(0, batch.num_prompt_tokens[place] - config.max_match)
            self._seen[batch.request_ids[place]] = token_ids[first:].copy()
        limit = batch.max_drafts[place]
        if limit == 0:
            return Proposal()
        as_tree = config.tree and not (batch.chain_only and batch.chain_only[place])
        own = draft_from(token_ids, None, self._limits, limit, as_tree=as_tree)
        if config.shared_tokens:
            last_tokens = token_ids[-config.max_match :]
            shared = draft_from(self._shared.token_ids, last_tokens, self._limits, limit, as_tree=as_tree)
            if shared.score > own.score:
                return Proposal(shared.token_ids, shared.parents)
        return Proposal(own.token_ids, own.parents)
