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
from tokenloom.drafter_training.trainable_head import Answers
from tokenloom.models.causal_lm import FINAL_STATE

__all__ = ["Distillation"]


@final
class Distillation:
    """What the target says at the tokens of some conversations.

    Args:
        sequences: the conversations; T tokens in all.
        vocabulary: the tokens that can be drafted, D of them.
        rows: [D, H], the target's output matrix for these.
    """

    def __init__(self, sequences: Sequence[Sequenced], vocabulary: DraftVocabulary, rows: torch.Tensor) -> None:
        tokens = torch.cat([sequence.token_ids for sequence in sequences])  # [T]
        # What answers are judged by lies from their prompt's last token to their last but one.
        judges = [
            torch.arange(len(s.token_ids), device=s.token_ids.device) >= s.num_prompt_tokens - 1 for s in sequences
        ]
        needed = torch.cat(judges)  # [T]
        states = torch.cat([sequence.states[FINAL_STATE] for sequence in sequences])[needed]
        with torch.no_grad():
            self._probs = functional.linear(states.float(), rows).float().softmax(dim=-1)  # [needed, D]
        self._place_of = needed.cumsum(0) - 1  # [T]
        self._can_be_drafted = vocabulary.column_of[tokens] >= 0  # [T]

    def loss(self, logits: torch.Tensor, answers: Answers, draft: int) -> torch.Tensor:
        """Mean cross entropy of a draft's logits.

        Args:
            logits: [R, D], at the places of `answers`.
            answers: the places.
            draft: 0 for the first one, which stands for the token two behind the place.
        """
        said, exists = answers.ahead(draft + 2)
        is_taught = exists & self._can_be_drafted[said]
        before, _ = answers.ahead(draft + 1)
        probs = self._probs[self._place_of[before[is_taught]]]
        # A sum over nothing is 0, where a mean would be NaN.
        return -(probs * logits[is_taught].float().log_softmax(dim=-1)).sum() / is_taught.sum().clamp(min=1)
