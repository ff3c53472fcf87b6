"""Drafts that are right as often as one asks for: to measure what a drafter would bring, before there is one.

No drafter can know what the target will say. This one knows what it has heard: the first time that a prompt comes it
proposes nothing and remembers the answer; when the prompt comes again it proposes that answer, with mistakes at the
rates given. So run a workload twice on one engine, greedy or seeded, and measure the second run. With
executor=simulated, where there is nothing to hear, the rates are taken as they are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated, final

import numpy as np
import numpy.typing as npt
from pydantic import Field

from tokenloom.executors.synthetic_tokens import SyntheticTokens
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.spec_decode import (
    DraftBatch,
    Drafter,
    DrafterContext,
    DrafterNeeds,
    DraftSampling,
    Proposal,
    SpecDecodeConfig,
)

__all__ = ["SyntheticConfig", "SyntheticDrafter"]

_Tokens = npt.NDArray[np.int32]
_Rate = Annotated[float, Field(ge=0.0, le=1.0)]


@final
class SyntheticConfig(SpecDecodeConfig):
    """Settings of `spec_decode=synthetic`."""

    acceptance: Annotated[tuple[_Rate, ...], Field(min_length=1)] = Field(
        default=(0.7,),
        description="How likely a draft is right if those before it are, by depth; the last rate holds beyond.",
    )
    max_known_tokens: Annotated[int, Field(ge=1)] = Field(
        default=4_194_304, description="Tokens of prompts and answers to remember; the oldest leave."
    )
    policy: PluginChoice = Field(description="How many tokens to propose.")

    def draft_policy(self) -> PluginChoice | None:
        return self.policy

    def simulated_acceptance(self) -> tuple[float, ...]:
        return self.acceptance

    def build(self, context: DrafterContext) -> SyntheticDrafter:
        return SyntheticDrafter(context.vocab_size, self.acceptance, self.max_known_tokens)


@final
class SyntheticDrafter(Drafter):
    """Repeats what it has heard. Which drafts are wrong depends on the request's seed and the position alone."""

    def __init__(self, vocab_size: int, acceptance: Sequence[float], max_known_tokens: int) -> None:
        self._vocab_size = vocab_size
        self._rates = SyntheticTokens(vocab_size, acceptance)
        self._max_known_tokens = max_known_tokens
        self._num_known_tokens = 0
        self._known: OrderedDict[bytes, _Tokens] = OrderedDict()
        self._running: dict[str, tuple[bytes, _Tokens]] = {}

    def needs(self) -> DrafterNeeds:
        return DrafterNeeds()

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        return [self._proposal(batch, place) for place in range(len(batch.request_ids))]

    def forget(self, request_ids: Sequence[str]) -> None:
        """Remembers what the requests said, prompts included, up to the last tokens that the drafter was shown."""
        for request_id in request_ids:
            key, token_ids = self._running.pop(request_id, (b"", np.empty(0, np.int32)))
            if len(token_ids):
                self._learn(key, token_ids)

    def _proposal(self, batch: DraftBatch, place: int) -> Proposal:
        request_id, token_ids, sampling = batch.request_ids[place], batch.token_ids[place], batch.sampling[place]
        running = self._running.get(request_id)
        key = _key(token_ids[: batch.num_prompt_tokens[place]], sampling) if running is None else running[0]
        self._running[request_id] = (key, token_ids.copy())
        known, count = self._known.get(key), len(token_ids)
        if known is None or not np.array_equal(known[:count], token_ids):
            return Proposal()
        future: list[int] = known[count : count + batch.max_drafts[place]].tolist()
        return Proposal(tuple(self._drafted(token_id, sampling, depth) for depth, token_id in enumerate(future)))

    def _drafted(self, token_id: int, sampling: DraftSampling, depth: int) -> int:
        """The token, or another one at the rate given."""
        if self._rates.is_foreseen(sampling.seed, sampling.choice, sampling.position + depth, depth):
            return token_id
        return (token_id + 1) % self._vocab_size

    def _learn(self, key: bytes, token_ids: _Tokens) -> None:
        known = self._known.get(key)
        if known is not None and np.array_equal(known[: len(token_ids)], token_ids):
            return
        self._num_known_tokens += len(token_ids) - (0 if known is None else len(known))
        self._known[key] = token_ids
        while self._num_known_tokens > self._max_known_tokens:
            self._num_known_tokens -= len(self._known.popitem(last=False)[1])


def _key(prompt: _Tokens, sampling: DraftSampling) -> bytes:
    """What an answer depends on: the prompt, and the noise if there is any."""
    chance = f"{sampling.seed}/{sampling.choice}/" if sampling.params.temperature > 0 else "greedy/"
    return chance.encode() + prompt.tobytes()
