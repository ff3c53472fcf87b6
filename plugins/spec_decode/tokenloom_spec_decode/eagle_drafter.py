"""Drafts with a head that runs on the target's hidden states: EAGLE and what followed from it.

The head has one decoder layer with KV memory of its own. Its entry at position t comes from the target's state at t and
from the *next* token, so that after a step it knows every entry below the frontier F; the state that it gives at F - 1
yields the first draft. From there on it feeds its own states and drafts back to itself.

    entry    first_position ... F - 1         | F       F + 1  ... F + k - 2
    made of  target's states and tokens t + 1 | draft 1 and its own state, draft 2, ...

The entries from F on are guesses: the next step writes them anew, from the target's states.

Source: Li et al., "EAGLE: Speculative sampling requires rethinking feature uncertainty" (2024).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple, final

import numpy as np
import torch

from tokenloom.interfaces.draft_memory import DraftPass
from tokenloom.interfaces.spec_decode import (
    DraftBatch,
    Drafter,
    DrafterContext,
    DrafterNeeds,
    DraftMemory,
    Proposal,
)
from tokenloom_spec_decode.chain_drafts import ChainDrafts
from tokenloom_spec_decode.eagle_tree import GrowingTree
from tokenloom_spec_decode.repeated_text import RepeatedText

__all__ = ["EagleDrafter", "EagleHead", "HeadFacts"]


@final
@dataclass(frozen=True, slots=True)
class HeadFacts:
    """What a drafter needs to know of its head.

    Attributes:
        needs: states of the target that it reads, KV memory of its layer, and a name of weights and config.
        num_weight_bytes: of its own weights.
        column_ids: int64 [columns], the target's id for each column of its logits; None where columns are ids.
    """

    needs: DrafterNeeds
    num_weight_bytes: int
    column_ids: torch.Tensor | None = None


class EagleHead(ABC):
    """The network of a head: H its hidden size, R rows, T tokens."""

    def __init__(self, facts: HeadFacts) -> None:
        self.facts = facts

    @abstractmethod
    def fuse(self, hidden_states: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """The target's states of some tokens, by layer, each [R, H of the target] -> [R, H], as `run` takes them."""

    @abstractmethod
    def run(self, next_ids: torch.Tensor, states: torch.Tensor, draft_pass: DraftPass) -> torch.Tensor:
        """Its layer over T new entries: next tokens int64 [T] and states [T, H] -> states [T, H], to feed back."""

    @abstractmethod
    def store(self, next_ids: torch.Tensor, states: torch.Tensor, draft_pass: DraftPass) -> None:
        """Writes what `run` would write of T new entries, where nobody asks for the states that they give."""

    @abstractmethod
    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        """What `run` gave, [R, H] -> logits [R, columns]."""


class _Row(NamedTuple):
    """One request with new verified tokens: where in the batch, its first position, its frontier, drafts wanted."""

    place: int
    request_id: str
    first: int
    frontier: int
    max_drafts: int


@final
class EagleDrafter(Drafter):
    """Keeps no state of requests: what a head remembers is in its KV memory."""

    def __init__(
        self,
        head: EagleHead,
        context: DrafterContext,
        *,
        keeps_probs: bool = False,
        tree_width: int = 1,
        min_probability: float = 0.0,
        lookup_match: int = 0,
    ) -> None:
        """Drafts with `head`.

        Args:
            head: loaded.
            context: of the target.
            keeps_probs: whether chains carry the probabilities that drafts were drawn from.
            tree_width: of trees, where they are legal; 1 drafts chains everywhere.
            min_probability: a draft whose path is less likely than that is left out, with all behind it.
            lookup_match: where so many of the last tokens occurred before, what followed them is drafted, and the head
                not asked; 0 asks it everywhere.
        """
        self._head = head
        self._vocab_size = context.vocab_size
        self._device = context.device
        self._keeps_probs = keeps_probs
        self._tree_width = tree_width
        self._min_probability = min_probability
        self._repeated = RepeatedText(lookup_match)

    @property
    def num_weight_bytes(self) -> int:
        return self._head.facts.num_weight_bytes

    def needs(self) -> DrafterNeeds:
        return self._head.facts.needs

    def propose(self, batch: DraftBatch) -> Sequence[Proposal]:
        memory = batch.memory
        assert memory is not None, "the core gives memory to a drafter that asks for some"
        proposals = [Proposal()] * len(batch.request_ids)
        rows = _rows(batch)
        if not rows:
            return proposals
        counts = [row.frontier - row.first for row in rows]
        next_tokens = [_next_tokens(batch.token_ids[row.place], row) for row in rows]
        next_ids = torch.from_numpy(next_tokens[0] if len(rows) == 1 else np.concatenate(next_tokens)).to(self._device)
        draft_pass = memory.begin([row.request_id for row in rows], [row.first for row in rows], counts)
        fused = self._head.fuse(batch.hidden_states)
        asking = self._look_up(batch, rows, proposals)
        if not asking:
            self._head.store(next_ids, fused, draft_pass)
            return proposals
        states = self._head.run(next_ids, fused, draft_pass)
        ends = [end - 1 for end in accumulate(counts)]
        for as_tree in (False, True):
            drafting = [row for row in asking if self._takes_tree(batch, row) == as_tree]
            if not drafting:
                continue
            chosen = {row.place for row in drafting}
            last = [end for row, end in zip(rows, ends, strict=True) if row.place in chosen]
            own = states[torch.tensor(last, device=self._device)]
            found = self._grow(memory, drafting, own) if as_tree else self._draft(memory, drafting, own, batch)
            for row, proposal in zip(drafting, found, strict=True):
                proposals[row.place] = proposal
        return proposals

    def forget(self, request_ids: Sequence[str]) -> None:
        """Keeps no state."""

    def _look_up(self, batch: DraftBatch, rows: Sequence[_Row], proposals: list[Proposal]) -> list[_Row]:
        """Proposes what the text repeats; returns the rows that want drafts and got none so."""
        wanted = [row for row in rows if row.max_drafts]
        for row in wanted:
            as_tree = self._takes_tree(batch, row)
            proposals[row.place] = self._repeated.proposal(batch.token_ids[row.place], row.max_drafts, as_tree=as_tree)
        return [row for row in wanted if not proposals[row.place].token_ids]

    def _takes_tree(self, batch: DraftBatch, row: _Row) -> bool:
        is_chain = row.max_drafts == 1 or not batch.chain_only or batch.chain_only[row.place]
        return self._tree_width > 1 and not is_chain

    def _draft(
        self, memory: DraftMemory, rows: Sequence[_Row], states: torch.Tensor, batch: DraftBatch
    ) -> list[Proposal]:
        """Chains behind entry F - 1 of each row, whose states [n, H] are given."""
        chains = ChainDrafts(
            [batch.sampling[row.place] for row in rows],
            self._vocab_size,
            self._device,
            keeps_probs=self._keeps_probs,
            column_ids=self._head.facts.column_ids,
            min_probability=self._min_probability,
        )
        live: Sequence[int] = range(len(rows))
        for depth in range(1, max(row.max_drafts for row in rows) + 1):
            likely = chains.choose(self._head.compute_logits(states), live)
            going = [number for number in likely if rows[number].max_drafts > depth]
            if not going:
                break
            if len(going) < len(live):
                states = states[torch.tensor([live.index(number) for number in going], device=self._device)]
            chosen = [rows[number] for number in going]
            starts = [row.frontier + depth - 1 for row in chosen]
            draft_pass = memory.begin([row.request_id for row in chosen], starts, [1] * len(chosen))
            next_ids = torch.tensor([chains.last(number) for number in going], device=self._device)
            states, live = self._head.run(next_ids, states, draft_pass), going
        return [chains.proposal(number) for number in range(len(rows))]

    def _grow(self, memory: DraftMemory, rows: Sequence[_Row], states: torch.Tensor) -> list[Proposal]:
        """Trees behind entry F - 1 of each row, whose states [n, H] are given.

        A pass is causal but for what a mask says of its own tokens; so each one runs over all of a tree's nodes again.
        """
        least = math.log(self._min_probability) if self._min_probability else -math.inf
        trees = [GrowingTree(row.max_drafts, self._tree_width, least) for row in rows]
        # Per tree, the state that each of its run nodes gave, behind the one that the tree begins with.
        given = [[state] for state in states]
        self._branch(list(zip(trees, states, [-1] * len(trees), strict=True)))
        for tree in trees:
            tree.grow(0)
        while any(tree.num_new for tree in trees):
            live = [number for number, tree in enumerate(trees) if tree.num_new]
            parents = [trees[number].run_parents() for number in live]
            draft_pass = memory.begin(
                [rows[number].request_id for number in live],
                [rows[number].frontier for number in live],
                [len(own) for own in parents],
                parents,
            )
            ids = [trees[number].token_ids[node] for number in live for node in trees[number].run]
            inputs = [given[number][parent + 1] for number, own in zip(live, parents, strict=True) for parent in own]
            next_ids = torch.tensor(ids, device=self._device)
            outputs = self._head.run(next_ids, torch.stack(inputs), draft_pass)  # [T, H]
            fresh, firsts, end = [], {number: len(trees[number].values) for number in live}, 0
            for number, own in zip(live, parents, strict=True):
                tree, end = trees[number], end + len(own)
                # The nodes that were run before gave the same states before.
                states_of_new = list(outputs[end - tree.num_new : end])
                given[number] += states_of_new
                new = tree.run[len(tree.run) - tree.num_new :]
                fresh += [(tree, state, node) for state, node in zip(states_of_new, new, strict=True)]
            self._branch(fresh)
            for number in live:
                trees[number].grow(firsts[number])
        return [tree.proposal() for tree in trees]

    def _branch(self, nodes: Sequence[tuple[GrowingTree, torch.Tensor, int]]) -> None:
        """Adds the likeliest tokens behind some nodes, each with its tree and its state [H]."""
        logits = self._head.compute_logits(torch.stack([state for _, state, _ in nodes]))[:, : self._vocab_size]
        best = logits.float().log_softmax(dim=-1).topk(min(self._tree_width, logits.shape[1]), dim=-1)
        columns = self._head.facts.column_ids
        ids = best.indices if columns is None else columns[best.indices]  # [nodes, width]
        for (tree, _, node), own_ids, values in zip(nodes, ids.tolist(), best.values.tolist(), strict=True):
            tree.add(node, own_ids, values)


def _rows(batch: DraftBatch) -> list[_Row]:
    """The requests that have new verified tokens: in the engine, all."""
    assert batch.cu_hidden is not None, "the core says how many tokens are new"
    bounds = batch.cu_hidden.tolist()
    counts = [end - begin for begin, end in pairwise(bounds)]
    return [
        _Row(place, batch.request_ids[place], first, first + count, batch.max_drafts[place])
        for place, (first, count) in enumerate(zip(batch.first_positions, counts, strict=True))
        if count
    ]


def _next_tokens(token_ids: np.ndarray, row: _Row) -> np.ndarray:
    """int64 [F - first]: the token behind each new one; 0 behind the last one of a request that failed there."""
    known = token_ids[row.first + 1 : row.frontier + 1].astype(np.int64)
    missing = row.frontier - row.first - len(known)
    return np.pad(known, (0, missing)) if missing else known
