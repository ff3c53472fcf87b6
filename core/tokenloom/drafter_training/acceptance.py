"""How often a head's drafts are what the target says, on conversations that it was not trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch.nn import functional

from tokenloom.drafter_training.corpus import Corpus
from tokenloom.drafter_training.target import Target
from tokenloom.drafter_training.trainable_head import TrainableHead, places_of
from tokenloom.models.causal_lm import FINAL_STATE

__all__ = ["Acceptance", "measure_acceptance"]

_NUM_RANKS = 10
_MAX_CONVERSATIONS = 64


@final
@dataclass(frozen=True, slots=True)
class Acceptance:
    """What was measured.

    Attributes:
        num_places: where drafts were judged.
        by_position: per draft, how often it is right if those before it are.
        by_rank: per draft, how often its best guess is right, its second best, ..., whatever those before it were.
    """

    num_places: int
    by_position: tuple[float, ...]
    by_rank: tuple[tuple[float, ...], ...]

    @property
    def tokens_per_step(self) -> float:
        """What a chain of all drafts would give in one step, with the target's own token."""
        total, share = 1.0, 1.0
        for rate in self.by_position:
            share *= rate
            total += share
        return total


@torch.no_grad()
def measure_acceptance(
    head: TrainableHead, target: Target, corpus: Corpus, progress: Callable[[int, int], None]
) -> Acceptance:
    """Judges a head by greedy drafts on held-out conversations.

    Args:
        head: trained.
        target: whose tokens count.
        corpus: holds the conversations.
        progress: told (conversations done, in all).
    """
    num_ranks = min(_NUM_RANKS, target.config.vocab_size)
    chosen = corpus.held_out[:_MAX_CONVERSATIONS]
    right = torch.zeros(head.num_drafts, num_ranks, dtype=torch.int64)
    chains = torch.zeros(head.num_drafts + 1, dtype=torch.int64)
    num_places = 0
    for number, index in enumerate(chosen):
        sequence = corpus.load(index, head.state_layers, target.head.device)
        said = functional.linear(sequence.states[FINAL_STATE].float(), target.head).argmax(dim=-1)  # [T]
        places = places_of([sequence])
        # Places whose last draft has nothing to be compared with are left out of all.
        counts = places.ahead(head.num_drafts)[1]
        is_chain = counts
        chains[0] += counts.sum().cpu()
        num_places += int(counts.sum())
        for draft, ids in enumerate(head.guesses([sequence], num_ranks)):
            hits = ids == said[places.ahead(draft + 1)[0]].unsqueeze(1)  # [R, ranks]
            right[draft] += hits[counts].sum(dim=0).cpu()
            is_chain = is_chain & hits[:, 0]
            chains[draft + 1] += is_chain.sum().cpu()
        progress(number + 1, len(chosen))
    rates = chains[1:] / chains[:-1].clamp(min=1)
    shares = right / max(1, num_places)
    return Acceptance(num_places, tuple(rates.tolist()), tuple(tuple(row) for row in shares.tolist()))
