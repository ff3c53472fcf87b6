"""The contract between the training loop and a head that it trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from tokenloom.drafter_training.corpus import Sequenced

__all__ = ["Answers", "TrainableHead", "answers_of"]


@final
@dataclass(frozen=True, slots=True)
class Answers:
    """The places of some conversations where a head is trained: R of them, all in answers.

    A place is the last verified position t: the target has said token t + 1, drafts are for t + 2, t + 3, ...
    Counted over all conversations behind one another, T tokens in all.

    Attributes:
        rows: int64 [R], each place.
        ends: int64 [R], the end of the conversation that each is in.
    """

    rows: torch.Tensor
    ends: torch.Tensor

    def ahead(self, distance: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows that lie `distance` behind the places, int64 [R], and which of them exist, bool [R]; others are 0."""
        rows = self.rows + distance
        exists = rows < self.ends
        return torch.where(exists, rows, 0), exists


def answers_of(sequences: Sequence[Sequenced]) -> Answers:
    """All places of these conversations: from the prompt's last token to the last but two."""
    rows, ends, start = [], [], 0
    for sequence in sequences:
        end = start + len(sequence.token_ids)
        own = torch.arange(start + sequence.num_prompt_tokens - 1, end - 2, device=sequence.token_ids.device)
        rows.append(own)
        ends.append(torch.full_like(own, end))
        start = end
    return Answers(torch.cat(rows), torch.cat(ends))


class TrainableHead(torch.nn.Module, ABC):
    """The network of a drafter, in float32; its parameters are what is trained, everything else is frozen."""

    @property
    @abstractmethod
    def state_layers(self) -> tuple[int, ...]:
        """The layers of the target whose states it is given; -1 is the final normed state."""

    @property
    @abstractmethod
    def num_drafts(self) -> int:
        """How many drafts in a row it is trained and judged for."""

    @abstractmethod
    def losses(self, sequences: Sequence[Sequenced]) -> list[torch.Tensor]:
        """Per draft, the mean cross entropy with what the target would have said, each a scalar."""

    @abstractmethod
    def guesses(self, sequences: Sequence[Sequenced], num_ranks: int) -> list[torch.Tensor]:
        """Per draft, the tokens that it finds most likely at each place of `answers_of`, best first: int64 [R, ranks].

        Each draft hears the right ones before it.
        """

    @abstractmethod
    def tensors(self) -> dict[str, torch.Tensor]:
        """What its file holds, in the layout of its kind; floating tensors in float32."""

    @abstractmethod
    def config_json(self, accuracies: Sequence[Sequence[float]]) -> dict[str, Any]:
        """What its config.json says.

        Args:
            accuracies: per draft, how often its best guess was right, its second best, ...
        """
