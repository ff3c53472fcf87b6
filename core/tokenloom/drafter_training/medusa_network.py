"""Medusa heads in training: a residual layer each, and rows of the target's output matrix, which stay as they are.

Head i guesses the token i + 2 behind a place from the final state there; at first it says what the target says itself,
for the token before.

Source: Cai et al., "Medusa: Simple LLM inference acceleration framework with multiple decoding heads" (2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import nn
from torch.nn import functional

from tokenloom.drafter_training.corpus import Sequenced
from tokenloom.drafter_training.distillation import Distillation
from tokenloom.drafter_training.draft_vocabulary import DraftVocabulary
from tokenloom.drafter_training.target import Target
from tokenloom.drafter_training.trainable_head import Lesson, Places, TrainableHead, places_of
from tokenloom.models.causal_lm import FINAL_STATE

__all__ = ["MedusaNetwork"]


@final
class MedusaNetwork(TrainableHead):
    """Heads for one target.

    Args:
        target: whose states they read.
        vocabulary: tokens that they can guess.
        num_heads: how many tokens ahead they reach.
    """

    def __init__(self, target: Target, vocabulary: DraftVocabulary, num_heads: int) -> None:
        super().__init__()
        size = target.config.hidden_size
        self.blocks = nn.ModuleList([_Block(size) for _ in range(num_heads)])
        self._target = target
        self._vocabulary = vocabulary
        self._rows = target.head[vocabulary.ids]

    @property
    def state_layers(self) -> tuple[int, ...]:
        return (FINAL_STATE,)

    @property
    def num_drafts(self) -> int:
        return len(self.blocks)

    def losses(self, sequences: Sequence[Sequenced], lesson: Lesson) -> list[torch.Tensor]:
        places = places_of(sequences, lesson.prompt_weight)
        told = Distillation(sequences, places, self._vocabulary, self._rows, self._target.config.final_soft_cap)
        logits = self._all_logits(sequences, places, lesson.num_drafts)
        return [told.loss(each, draft) for draft, each in enumerate(logits)]

    def guesses(self, sequences: Sequence[Sequenced], num_ranks: int) -> list[torch.Tensor]:
        logits = self._all_logits(sequences, places_of(sequences), self.num_drafts)
        return [self._vocabulary.ids[each.topk(num_ranks, dim=-1).indices] for each in logits]

    def tensors(self) -> dict[str, torch.Tensor]:
        return {**self.state_dict(), "token_map": self._vocabulary.ids}

    def config_json(self, accuracies: Sequence[Sequence[float]]) -> dict[str, Any]:
        config = self._target.config
        return {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": config.hidden_size,
            "vocab_size": config.vocab_size,
            "truncated_vocab_size": len(self._vocabulary.ids),
            "num_heads": len(self.blocks),
            "num_hidden_layers": 1,
            "medusa_num_heads": len(self.blocks),
            "medusa_num_layers": 1,
            "medusa_fc_bias": True,
            "original_lm_head": True,
            "medusa_head_accuracies": [[round(share, 4) for share in shares] for shares in accuracies],
        }

    def _all_logits(self, sequences: Sequence[Sequenced], places: Places, count: int) -> list[torch.Tensor]:
        """Of the first `count` heads, [R, D] each."""
        states = torch.cat([sequence.states[FINAL_STATE] for sequence in sequences])[places.rows]  # [R, H]
        return [functional.linear(block(states.float()), self._rows) for block in self.blocks[:count]]


@final
class _Block(nn.Module):
    """x + SiLU(x W^T + b), zero at first but for x."""

    def __init__(self, size: int) -> None:
        super().__init__()
        linear = nn.Linear(size, size)
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
        self.layers = nn.ModuleList([linear])

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = states + functional.silu(self.layers[0](states))
        return result
