"""The target drafts for itself: it guesses with some of its own layers, on its own keys and values.

No second model, no weights and no KV memory of its own. A pass over a draft writes the keys and values of the layers
that it runs behind the frontier, where the verification writes the right ones over them.

    layers that run     exit_layer: the first E, then the final norm and the head     early exit
                        skip_attention, skip_ffn: all but these parts                 layer skip
                        neither: parts that a search finds, from how often its drafts are right

Sources: Elhoushi et al., "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding" (2024); Zhang et al.,
"Draft & Verify: Lossless LLM Acceleration via Self-Speculative Decoding" (2023); Xia et al., "SWIFT" (2024).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, final

import torch
from pydantic import Field, model_validator

from tokenloom.errors import ConfigError
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.spec_decode import (
    DraftBatch,
    Drafter,
    DrafterContext,
    DrafterNeeds,
    LayerParts,
    Proposal,
    SpecDecodeConfig,
    TargetLayers,
)
from tokenloom_spec_decode.chain_drafts import ChainDrafts
from tokenloom_spec_decode.skip_search import SkipSearch, SkipSet, parts_without

__all__ = ["SelfSpecConfig", "SelfSpecDrafter"]

_LOG = logging.getLogger(__name__)
_Layer = Annotated[int, Field(ge=0)]


@final
class SelfSpecConfig(SpecDecodeConfig):
    """Settings of `spec_decode=self_spec`."""

    exit_layer: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Draft with the first so many layers; for models that were trained to exit early."
    )
    skip_attention: tuple[_Layer, ...] = Field(default=(), description="Layers whose attention a draft leaves out.")
    skip_ffn: tuple[_Layer, ...] = Field(
        default=(), description="Layers whose feed-forward network a draft leaves out."
    )
    search_share: Annotated[float, Field(gt=0.0, lt=1.0)] = Field(
        default=0.4,
        description="Share of the parts to leave out where neither of the above is given: which, is searched.",
    )
    search_drafts: Annotated[int, Field(ge=1)] = Field(
        default=4096, description="Drafts that the search measures before the best set stays; a message names it."
    )
    policy: PluginChoice = Field(description="How many tokens to propose.")

    @model_validator(mode="after")
    def _one_of_both(self) -> SelfSpecConfig:
        if self.exit_layer is not None and (self.skip_attention or self.skip_ffn):
            raise ValueError(
                f"exit_layer={self.exit_layer} and skip_attention or skip_ffn are two ways to say what runs; give one"
            )
        return self

    def draft_policy(self) -> PluginChoice | None:
        return self.policy

    def build(self, context: DrafterContext) -> SelfSpecDrafter:
        layers = context.target_layers
        if layers is None:
            raise ConfigError(
                "spec_decode=self_spec runs layers of the target, and this executor lends none; choose executor=local"
            )
        keeps_probs, num_layers = self.verifier == "rejection", context.num_layers
        if not (self.exit_layer or self.skip_attention or self.skip_ffn):
            search = SkipSearch(num_layers, self.search_share, self.search_drafts)
            return SelfSpecDrafter(context, layers, search, keeps_probs=keeps_probs)
        for key, layer, last in self._last_layers(num_layers):
            if layer > last:
                raise ConfigError(
                    f"spec_decode.{key}: the model has {num_layers} layers, so it is at most {last}, got {layer}"
                )
        parts = parts_without(SkipSet(self.skip_attention, self.skip_ffn), num_layers)
        if self.exit_layer is not None:
            parts = LayerParts((True,) * self.exit_layer, (True,) * self.exit_layer)
        return SelfSpecDrafter(context, layers, parts, keeps_probs=keeps_probs)

    def _last_layers(self, num_layers: int) -> list[tuple[str, int, int]]:
        """The largest value of each key that is given, and the largest that it may have."""
        named = {
            "exit_layer": (() if self.exit_layer is None else (self.exit_layer,), num_layers),
            "skip_attention": (self.skip_attention, num_layers - 1),
            "skip_ffn": (self.skip_ffn, num_layers - 1),
        }
        return [(key, max(layers), last) for key, (layers, last) in named.items() if layers]


@final
@dataclass(frozen=True, slots=True)
class _Guess:
    """Drafts whose outcome is not known yet: from which token on, and in which trial of the search."""

    start: int
    token_ids: list[int]
    trial: int


@final
class SelfSpecDrafter(Drafter):
    """Runs the same parts for every request of a call, one pass for each depth."""

    def __init__(
        self, context: DrafterContext, layers: TargetLayers, what: LayerParts | SkipSearch, *, keeps_probs: bool = False
    ) -> None:
        """`what` runs, or the search for it; `keeps_probs`: whether proposals carry probabilities."""
        self._layers = layers
        self._compute_logits = context.compute_logits
        self._vocab_size = context.vocab_size
        self._num_layers = context.num_layers
        self._device = context.device
        self._keeps_probs = keeps_probs
        self._search = what if isinstance(what, SkipSearch) else None
        self.parts = parts_without(what.current(), self._num_layers) if isinstance(what, SkipSearch) else what
        self._guesses: dict[str, _Guess] = {}

    def needs(self) -> DrafterNeeds:
        return DrafterNeeds(target_kv=True)

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        if self._search is not None:
            self._learn(batch, self._search)
        proposals = [Proposal()] * len(batch.request_ids)
        places = [place for place, count in enumerate(batch.max_drafts) if count]
        if places:
            chains = self._draft(batch, places)
            for number, place in enumerate(places):
                proposals[place] = chains.proposal(number)
            if self._search is not None:
                self._remember(batch, places, chains, self._search.trial)
        return proposals

    def forget(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self._guesses.pop(request_id, None)

    def _draft(self, batch: DraftBatch, places: Sequence[int]) -> ChainDrafts:
        """Chains for the requests at `places`, whose newest token stands at the frontier, not run by the target yet."""
        memory, cu = batch.memory, batch.cu_hidden
        assert memory is not None, "the core gives the target's memory to a drafter that asks for it"
        assert cu is not None, "the core says how many tokens are new"
        sampling = [batch.sampling[place] for place in places]
        chains = ChainDrafts(sampling, self._vocab_size, self._device, keeps_probs=self._keeps_probs)
        frontiers = [batch.first_positions[place] + int(cu[place + 1] - cu[place]) for place in places]
        newest = [int(batch.token_ids[place][end]) for place, end in zip(places, frontiers, strict=True)]
        live = list(range(len(places)))
        for depth in range(max(batch.max_drafts[place] for place in places)):
            live = [number for number in live if batch.max_drafts[places[number]] > depth]
            ids = [batch.request_ids[places[number]] for number in live]
            draft_pass = memory.begin(ids, [frontiers[number] + depth for number in live], [1] * len(live))
            tokens = [chains.last(number) if depth else newest[number] for number in live]
            states = self._layers.run(torch.tensor(tokens, device=self._device), draft_pass, self.parts)  # [n, H]
            chains.choose(self._compute_logits(states), live)
        return chains

    def _learn(self, batch: DraftBatch, search: SkipSearch) -> None:
        """Tells the search which earlier drafts were right, and takes the set that it wants next."""
        for request_id, token_ids in zip(batch.request_ids, batch.token_ids, strict=True):
            guess = self._guesses.pop(request_id, None)
            if guess is None or guess.trial != search.trial:
                continue
            said = token_ids[guess.start : guess.start + len(guess.token_ids)].tolist()
            num_right = next((i for i, token_id in enumerate(said) if token_id != guess.token_ids[i]), len(said))
            search.observe(num_right, min(num_right + 1, len(said)))
        search.advance()
        skipped = search.current()
        self.parts = parts_without(skipped, self._num_layers)
        if search.is_over:
            self._search = None
            self._guesses.clear()
            attention, ffn = (",".join(map(str, layers)) for layers in (skipped.attention, skipped.ffn))
            # Without spaces, to be pasted into a command.
            found = f"spec_decode.skip_attention=[{attention}] spec_decode.skip_ffn=[{ffn}]"
            # At a level that is shown by default: the set is what the search was run for.
            _LOG.warning("spec_decode=self_spec: %.0f %% of the drafts are right with %s", 100 * search.rate, found)

    def _remember(self, batch: DraftBatch, places: Sequence[int], chains: ChainDrafts, trial: int) -> None:
        for number, place in enumerate(places):
            guess = _Guess(len(batch.token_ids[place]), list(chains.drafts(number)), trial)
            self._guesses[batch.request_ids[place]] = guess
