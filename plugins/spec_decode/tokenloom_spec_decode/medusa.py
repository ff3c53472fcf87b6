"""Medusa: extra heads on the target's final hidden state, each of which guesses one token further ahead.

Head i, counted from 0, guesses the token i + 1 places behind the one that the target has just said, from the state that
the target said it from. The heads do not hear each other's guesses, so that a tree of several guesses of each is worth
more than a chain. There is no KV memory and no draft step: all heads run at once.

Source: Cai et al., "Medusa: Simple LLM inference acceleration framework with multiple decoding heads" (2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, final

import torch
from pydantic import Field
from torch.nn import functional

from tokenloom.errors import ConfigError
from tokenloom.interfaces.contract import PluginChoice
from tokenloom.interfaces.spec_decode import (
    DraftBatch,
    Drafter,
    DrafterContext,
    DrafterNeeds,
    Proposal,
    SpecDecodeConfig,
    TensorFunction,
)
from tokenloom.loader.sources import resolve_model
from tokenloom.settings_base import UserPath
from tokenloom_spec_decode.medusa_checkpoint import MedusaWeights, TargetSizes, read_medusa
from tokenloom_spec_decode.medusa_tree import DraftTree, check_paths, default_accuracies, greedy_tree
from tokenloom_spec_decode.shipped_heads import shipped_head

__all__ = ["MedusaConfig", "MedusaDrafter"]

_FINAL_STATE = -1
_MAX_NODES = 64
_MISSING_SOURCE = (
    "spec_decode=medusa needs heads that were trained for this model: set spec_decode.source to their folder or to "
    "hf:org/name, or train some with tokenloom train-drafter kind=medusa; spec_decode=ngram needs none"
)
_Share = Annotated[float, Field(ge=0.0, le=1.0)]


@final
class MedusaConfig(SpecDecodeConfig):
    """Settings of `spec_decode=medusa`."""

    source: UserPath | None = Field(
        default=None,
        description="Folder of the heads, or hf:org/name, trained for this target; null takes those that are brought.",
    )
    accuracies: tuple[Annotated[tuple[_Share, ...], Field(min_length=1)], ...] | None = Field(
        default=None,
        description="Per head how often its best, second best, ... guess is right; null takes the checkpoint's.",
    )
    tree: tuple[tuple[int, ...], ...] | None = Field(
        default=None, description="Draft tree as paths of ranks, e.g. [[0],[1],[0,0]]; null makes it from accuracies."
    )
    policy: PluginChoice = Field(description="How many tokens to propose: nodes of the tree.")

    def draft_policy(self) -> PluginChoice | None:
        return self.policy

    def build(self, context: DrafterContext) -> MedusaDrafter:
        folder = (
            shipped_head("medusa", context.model_path, _MISSING_SOURCE)
            if self.source is None
            else resolve_model(self.source)
        )
        target = TargetSizes(context.hidden_size, context.vocab_size, context.dtype, context.device)
        weights = read_medusa(folder, target).with_target_rows(context.compute_logits)
        return MedusaDrafter(weights, self._tree(weights), context)

    def _tree(self, weights: MedusaWeights) -> DraftTree:
        num_heads = len(weights.layers)
        if self.tree is not None:
            check_paths(self.tree)
            deepest = max((len(path) for path in self.tree), default=0)
            if deepest > num_heads:
                raise ConfigError(f"spec_decode.tree is {deepest} deep; spec_decode.source holds {num_heads} heads")
            return DraftTree.of(self.tree)
        accuracies = self.accuracies or weights.accuracies or default_accuracies(num_heads)
        if len(accuracies) > num_heads:
            raise ConfigError(
                f"spec_decode.accuracies has {len(accuracies)} heads; spec_decode.source holds {num_heads}"
            )
        return DraftTree.of(greedy_tree(accuracies, _MAX_NODES))


@final
class MedusaDrafter(Drafter):
    """Keeps no state of requests."""

    def __init__(self, weights: MedusaWeights, tree: DraftTree, context: DrafterContext) -> None:
        num_guesses = context.vocab_size if weights.token_ids is None else len(weights.token_ids)
        used = max(tree.ranks, default=0) + 1
        if used > num_guesses:
            raise ConfigError(f"spec_decode.tree uses guess {used - 1}; the heads tell {num_guesses} tokens apart")
        self._weights = weights
        self._tree = tree
        self._compute_logits: TensorFunction = context.compute_logits

    @property
    def num_weight_bytes(self) -> int:
        """Bytes of the heads."""
        return self._weights.num_bytes

    def needs(self) -> DrafterNeeds:
        return DrafterNeeds(hidden_layers=(_FINAL_STATE,))

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        assert batch.cu_hidden is not None, "the core gives hidden states to a drafter that asks for them"
        ends = batch.cu_hidden[1:]
        chosen = [b for b, most in enumerate(batch.max_drafts) if most and ends[b] > batch.cu_hidden[b]]
        proposals = [Proposal()] * len(batch.request_ids)
        if not chosen:
            return proposals
        last = torch.tensor([int(ends[b]) - 1 for b in chosen], device=batch.hidden_states[_FINAL_STATE].device)
        num_heads = self._num_heads(max(batch.max_drafts[b] for b in chosen))
        guesses = self._guesses(batch.hidden_states[_FINAL_STATE][last], num_heads)
        for place, b in enumerate(chosen):
            is_chain = batch.chain_only[b] if batch.chain_only else True
            proposals[b] = self._proposal([head[place] for head in guesses], batch.max_drafts[b], is_chain=is_chain)
        return proposals

    def forget(self, request_ids: Sequence[str]) -> None:
        """Keeps no state."""

    def _num_heads(self, max_drafts: int) -> int:
        """How many heads the longest proposal hears: a chain takes as many as it has drafts, a tree no more."""
        return min(max_drafts, max(self._tree.heads, default=-1) + 1)

    def _guesses(self, hidden: torch.Tensor, num_heads: int) -> list[list[list[int]]]:
        """Per head and request the best tokens, best first, as many as the tree uses. hidden: [n, H]."""
        states = []
        for layers in self._weights.layers[:num_heads]:
            state = hidden
            for layer in layers:
                state = state + functional.silu(functional.linear(state, layer.weight, layer.bias))
            states.append(state)  # [n, H]
        guesses = []
        for head, logits in enumerate(self._logits(states)):
            best = logits.topk(max(1, self._tree.num_ranks(head)), dim=-1).indices  # [n, ranks]
            ids = best if self._weights.token_ids is None else self._weights.token_ids[best]
            guesses.append(ids.tolist())
        return guesses

    def _logits(self, states: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Per head [n, rows]. Heads that use the target's output matrix do so together."""
        outputs = self._weights.outputs
        shared = [head for head in range(len(states)) if outputs[head] is None]
        found: dict[int, torch.Tensor] = {}
        if shared:
            together = self._compute_logits(torch.cat([states[head] for head in shared]))  # [heads * n, V]
            found = dict(zip(shared, together.chunk(len(shared)), strict=True))
        for head, state in enumerate(states):
            output = outputs[head]
            if output is not None:
                found[head] = functional.linear(state, output)
        return [found[head] for head in range(len(states))]

    def _proposal(self, guesses: list[list[int]], max_drafts: int, *, is_chain: bool) -> Proposal:
        """One request's drafts from each head's guesses for it."""
        if is_chain:
            return Proposal(tuple(ranks[0] for ranks in guesses[:max_drafts]))
        tree = self._tree
        heads, ranks, parents = tree.heads[:max_drafts], tree.ranks[:max_drafts], tree.parents[:max_drafts]
        ids = tuple(guesses[head][rank] for head, rank in zip(heads, ranks, strict=True))
        # A tree without branches is a chain, which costs no mask.
        return Proposal(ids) if parents == tuple(range(-1, len(ids) - 1)) else Proposal(ids, parents)
