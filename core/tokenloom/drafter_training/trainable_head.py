"""The contract between the training loop and a head that it trains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from tokenloom.drafter_training.corpus import Sequenced

__all__ = ["Lesson", "Places", "TrainableHead", "places_of"]


@final
@dataclass(frozen=True, slots=True)
class Lesson:
    """What one step of training teaches.

    Attributes:
        num_drafts: how many drafts in a row, at most those of the head.
        prompt_weight: how much a place in a prompt counts, where one in an answer counts 1; 0 leaves them out.
    """

    num_drafts: int
    prompt_weight: float


@final
@dataclass(frozen=True, slots=True)
class Places:
    """The places of some conversations where a head is trained or judged: R of them.

    A place is the last verified position t: the target has said token t + 1, drafts are for t + 2, t + 3, ...
    Counted over all conversations behind one another, T tokens in all.

    Attributes:
        starts: per conversation where its places begin, counted from its own beginning; they end with its last token
            but two.
        rows: int64 [R], each place.
        ends: int64 [R], the end of the conversation that each is in.
        weights: float32 [R], how much each counts.
    """

    starts: tuple[int, ...]
    rows: torch.Tensor
    ends: torch.Tensor
    weights: torch.Tensor

    def ahead(self, distance: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows that lie `distance` behind the places, int64 [R], and which of them exist, bool [R]; others are 0."""
        rows = self.rows + distance
        exists = rows < self.ends
        return torch.where(exists, rows, 0), exists


def places_of(sequences: Sequence[Sequenced], prompt_weight: float = 0.0) -> Places:
    """All places of these conversations, from the prompt's last token on, or, if prompts count, from the first one."""
    starts, rows, ends, weights, begin = [], [], [], [], 0
    for sequence in sequences:
        length, device = len(sequence.token_ids), sequence.token_ids.device
        first_of_answer = sequence.num_prompt_tokens - 1
        starts.append(0 if prompt_weight else first_of_answer)
        own = torch.arange(starts[-1], length - 2, device=device)
        rows.append(begin + own)
        ends.append(torch.full_like(own, begin + length))
        weights.append(torch.where(own < first_of_answer, prompt_weight, 1.0))
        begin += length
    return Places(tuple(starts), torch.cat(rows), torch.cat(ends), torch.cat(weights))


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
    def losses(self, sequences: Sequence[Sequenced], lesson: Lesson) -> list[torch.Tensor]:
        """Per draft of the lesson, the mean cross entropy with what the target would have said, each a scalar."""

    @abstractmethod
    def guesses(self, sequences: Sequence[Sequenced], num_ranks: int) -> list[torch.Tensor]:
        """Per draft, the tokens that it finds most likely at each place of `places_of`, best first: int64 [R, ranks].

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
