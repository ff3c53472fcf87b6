"""The loss of all heads: cross entropy with the target's own distribution, over the tokens that can be drafted.

Source: Li et al., "EAGLE-3" (2025), section 3; positions whose token cannot be drafted teach nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch.nn import functional

from tokenloom.drafter_training.corpus import Sequenced
from tokenloom.drafter_training.draft_vocabulary import DraftVocabulary
from tokenloom.drafter_training.trainable_head import Places
from tokenloom.models.causal_lm import FINAL_STATE

__all__ = ["Distillation"]


@final
class Distillation:
    """What the target says at the tokens of some conversations.

    Args:
        sequences: the conversations; T tokens in all.
        places: where a head is trained, R of them.
        vocabulary: the tokens that can be drafted, D of them.
        rows: [D, H], the target's output matrix for these.
        soft_cap: of the target's logits, where it has one.
    """

    def __init__(
        self,
        sequences: Sequence[Sequenced],
        places: Places,
        vocabulary: DraftVocabulary,
        rows: torch.Tensor,
        soft_cap: float | None,
    ) -> None:
        self._places = places
        tokens = torch.cat([sequence.token_ids for sequence in sequences])  # [T]
        # What places are judged by lies behind the first one of each conversation.
        judges = [
            torch.arange(len(s.token_ids), device=s.token_ids.device) > start
            for s, start in zip(sequences, places.starts, strict=True)
        ]
        needed = torch.cat(judges)  # [T]
        states = torch.cat([sequence.states[FINAL_STATE] for sequence in sequences])[needed]
        with torch.no_grad():
            logits = functional.linear(states.float(), rows).float()  # [needed, D]
            self._probs = (logits if soft_cap is None else soft_cap * (logits / soft_cap).tanh()).softmax(dim=-1)
        self._place_of = needed.cumsum(0) - 1  # [T]
        self._can_be_drafted = vocabulary.column_of[tokens] >= 0  # [T]

    def loss(self, logits: torch.Tensor, draft: int) -> torch.Tensor:
        """Mean cross entropy of a draft's logits.

        Args:
            logits: [R, D], at the places.
            draft: 0 for the first one, which stands for the token two behind the place.
        """
        said, exists = self._places.ahead(draft + 2)
        weights = self._places.weights * (exists & self._can_be_drafted[said])  # [R]
        before, _ = self._places.ahead(draft + 1)
        probs = self._probs[self._place_of[before].clamp(min=0)]  # [R, D]
        each = functional.cross_entropy(logits.float(), probs, reduction="none")
        # A sum over nothing is 0, where a mean would be NaN.
        return (each * weights).sum() / weights.sum().clamp(min=1e-6)
