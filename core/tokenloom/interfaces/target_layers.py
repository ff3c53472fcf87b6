"""Part of contract `spec_decode`, since 1.3: the target's own layers, lent to a drafter that guesses by running some.

    slot       0 ... F - 1                          | F ... F + max_drafts - 1
    holds      keys and values of verified tokens   | what the drafter's passes write, in the layers that they run
               as the target has written them       | overwritten when the drafts are verified

F is where the request's frontier stands after the step. So such a drafter has neither weights nor KV memory of its own,
and nothing that could lag behind: whatever becomes of the target's entries becomes of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from tokenloom.interfaces.draft_memory import DraftPass

__all__ = ["LayerParts", "TargetLayers"]


@dataclass(frozen=True, slots=True)
class LayerParts:
    """Which parts of the target's decoder layers a pass runs; the residual stream passes by the others unchanged.

    Attributes:
        attention, ffn: per layer from the first on, whether its attention and its feed-forward network run; equally
            many. Layers beyond the last entry do not run.
    """

    attention: tuple[bool, ...]
    ffn: tuple[bool, ...]

    @property
    def num_parts(self) -> int:
        """How many parts run."""
        return sum(self.attention) + sum(self.ffn)


class TargetLayers(ABC):
    """The target's embedding, decoder layers and final norm."""

    @abstractmethod
    def run(self, token_ids: torch.Tensor, draft_pass: DraftPass, parts: LayerParts) -> torch.Tensor:
        """Runs some parts over new tokens, and writes the keys and values of the attention that runs.

        Args:
            token_ids: int64 [T], on the target's device; the tokens that `draft_pass` was begun for.
            draft_pass: of `DraftBatch.memory`, of a drafter with `DrafterNeeds.target_kv`.
            parts: what runs, then the final norm.

        Returns:
            [T, hidden_size], for `DrafterContext.compute_logits`.
        """
