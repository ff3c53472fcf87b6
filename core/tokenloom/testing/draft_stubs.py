"""Drafters that know what they do, for tests of the core: right for some tokens, then wrong; or drawn from a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import final

import torch

from tokenloom.interfaces.spec_decode import DraftBatch, Drafter, DrafterNeeds, DraftSampling, Proposal
from tokenloom.sampling.draft_sampler import DraftSampler

__all__ = ["DrawingDrafter", "OracleDrafter", "ScriptedDrafter"]


@final
class ScriptedDrafter(Drafter):
    """Proposes what a function says, and remembers every batch.

    Attributes:
        batches: what it was asked; the tokens in there have changed since.
        tokens: per batch and request, its tokens as they were.
        forgotten: ids that it was told to forget, in order.
    """

    def __init__(self, propose: Callable[[DraftBatch, int], Proposal]) -> None:
        """`propose(batch, place)` answers one request; called with the tokens as they are during the call."""
        self._propose = propose
        self.batches: list[DraftBatch] = []
        self.tokens: list[list[tuple[int, ...]]] = []
        self.forgotten: list[str] = []

    def needs(self) -> DrafterNeeds:
        return DrafterNeeds()

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        self.batches.append(batch)
        self.tokens.append([tuple(token_ids.tolist()) for token_ids in batch.token_ids])
        return [self._propose(batch, place) for place in range(len(batch.request_ids))]

    def forget(self, request_ids: Sequence[str]) -> None:
        self.forgotten.extend(request_ids)


@final
class OracleDrafter(Drafter):
    """Knows what each request will say: proposes so many right tokens, then wrong ones.

    With a number of right tokens of at least max_drafts every draft is accepted, with 0 none is.
    """

    def __init__(
        self,
        truth: Mapping[str, Sequence[int]],
        num_right: Callable[[str, int], int],
        vocab_size: int,
        *,
        as_tree: bool = False,
    ) -> None:
        """Makes the stub.

        Args:
            truth: per request id, all its output tokens.
            num_right: (request id, output tokens so far) -> how many drafts are right.
            vocab_size: of the target.
            as_tree: where trees are legal, hang a wrong sibling before each right node.
        """
        self._truth = truth
        self._num_right = num_right
        self._vocab_size = vocab_size
        self._as_tree = as_tree

    def needs(self) -> DrafterNeeds:
        return DrafterNeeds()

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        return [self._proposal(batch, place) for place in range(len(batch.request_ids))]

    def forget(self, request_ids: Sequence[str]) -> None:
        """Keeps no state."""

    def _proposal(self, batch: DraftBatch, place: int) -> Proposal:
        request_id, limit = batch.request_ids[place], batch.max_drafts[place]
        num_outputs = len(batch.token_ids[place]) - batch.num_prompt_tokens[place]
        right = self._num_right(request_id, num_outputs)
        future = list(self._truth[request_id][num_outputs:])
        ids = [
            token_id if depth < right else (token_id + 1) % self._vocab_size
            for depth, token_id in enumerate([*future, *[0] * limit][:limit])
        ]
        if not self._as_tree or batch.chain_only[place]:
            return Proposal(tuple(ids))
        nodes: list[int] = []
        parents: list[int] = []
        parent = -1
        for token_id in ids:
            nodes += [(token_id + 2) % self._vocab_size, token_id]
            parents += [parent, parent]
            parent = len(nodes) - 1
        return Proposal(tuple(nodes[:limit]), tuple(parents[:limit]))


@final
class DrawingDrafter(Drafter):
    """Draws from a table of logits after each token, [V, V], with the target's own noise, and says so.

    The distribution is that of the request's temperature, top_k, top_p and min_p; penalties are left to the target.
    """

    def __init__(self, table: torch.Tensor, *, has_probs: bool = True) -> None:
        """`has_probs`: whether proposals carry the probabilities."""
        self._table = table
        self._has_probs = has_probs

    def needs(self) -> DrafterNeeds:
        return DrafterNeeds()

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        last = torch.tensor([int(token_ids[-1]) for token_ids in batch.token_ids], dtype=torch.int64)
        drawn = self._draw(batch.sampling, last, max(batch.max_drafts))
        return [self._proposal(drawn, place, limit) for place, limit in enumerate(batch.max_drafts)]

    def forget(self, request_ids: Sequence[str]) -> None:
        """Keeps no state."""

    def _draw(
        self, sampling: Sequence[DraftSampling], last: torch.Tensor, num_drafts: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids int64 [B, k] and probabilities fp32 [B, k, V]."""
        sampler = DraftSampler(sampling, self._table.shape[0])
        ids = torch.empty(len(last), num_drafts, dtype=torch.int64)
        probs = torch.empty(len(last), num_drafts, self._table.shape[0])
        for depth in range(num_drafts):
            drawn = sampler.draw(self._table[last], depth)
            ids[:, depth], probs[:, depth], last = drawn.token_ids, drawn.probs, drawn.token_ids
        return ids, probs

    def _proposal(self, drawn: tuple[torch.Tensor, torch.Tensor], place: int, limit: int) -> Proposal:
        ids, probs = drawn
        return Proposal(tuple(ids[place, :limit].tolist()), probs=probs[place, :limit] if self._has_probs else None)
