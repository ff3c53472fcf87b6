"""An EAGLE-3 head in training: its one layer is run as many times in a row as it is to draft, on its own states.

In step 0 the entry at a place t is made of the target's states at t and of token t + 1, and sees the entries of all
places up to t. In step s it is made of the state that step s - 1 gave, and of token t + s + 1; it lies at position
t + s and sees the first entries up to t, and its own of the steps between:

    step 0  entries 0 ... t                       sees  <= t
    step 1  t + 1, of the state that 0 gave at t  sees  <= t, and itself
    step 2  t + 2, of the state that 1 gave       sees  <= t, step 1's, and itself

That is what drafting does, with the right drafts. Parameters have their names in a file of `speculators`.

Source: Li et al., "EAGLE-3: Scaling up inference acceleration of large language models via training-time test" (2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import nn

from tokenloom.drafter_training.corpus import Sequenced
from tokenloom.drafter_training.distillation import Distillation
from tokenloom.drafter_training.draft_vocabulary import DraftVocabulary
from tokenloom.drafter_training.eagle3_layer import Entries, HeadLayer, KeysAndValues
from tokenloom.drafter_training.target import Target, aux_layers
from tokenloom.drafter_training.trainable_head import Lesson, Places, TrainableHead, places_of
from tokenloom.models.causal_lm import FINAL_STATE

__all__ = ["Eagle3Network"]


@final
class Eagle3Network(TrainableHead):
    """A head for one target. It begins as the target's last layer on the highest of the states that it reads.

    Args:
        target: whose states it reads.
        vocabulary: tokens that it can draft.
        num_steps: drafts in a row that it is trained for.
    """

    def __init__(self, target: Target, vocabulary: DraftVocabulary, num_steps: int) -> None:
        super().__init__()
        config = target.config
        size = config.hidden_size
        self.fc = nn.Linear(3 * size, size, bias=False)
        self.layers = nn.ModuleList([HeadLayer(config)])
        self.norm = nn.RMSNorm(size, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(size, len(vocabulary.ids), bias=False)
        self._target = target
        self._vocabulary = vocabulary
        self._num_steps = num_steps
        self._aux = aux_layers(config.num_layers)
        self._rows = target.head[vocabulary.ids]
        self._begin()

    @torch.no_grad()
    def _begin(self) -> None:
        size = self._target.config.hidden_size
        self.fc.weight.mul_(0.1)
        self.fc.weight[:, 2 * size :] += torch.eye(size)
        self.lm_head.weight.copy_(self._target.head[self._vocabulary.ids])
        self.norm.weight.copy_(self._target.final_norm)
        if self._target.last_layer:
            self._layer.begin_as(self._target.last_layer)

    @property
    def _layer(self) -> HeadLayer:
        layer = self.layers[0]
        assert isinstance(layer, HeadLayer)
        return layer

    @property
    def state_layers(self) -> tuple[int, ...]:
        return (*self._aux, FINAL_STATE)

    @property
    def num_drafts(self) -> int:
        return self._num_steps

    def losses(self, sequences: Sequence[Sequenced], lesson: Lesson) -> list[torch.Tensor]:
        places = places_of(sequences, lesson.prompt_weight)
        told = Distillation(sequences, places, self._vocabulary, self._rows, self._target.config.final_soft_cap)
        logits = self._all_logits(sequences, places, lesson.num_drafts)
        return [told.loss(each, step) for step, each in enumerate(logits)]

    def guesses(self, sequences: Sequence[Sequenced], num_ranks: int) -> list[torch.Tensor]:
        logits = self._all_logits(sequences, places_of(sequences), self._num_steps)
        return [self._vocabulary.ids[each.topk(num_ranks, dim=-1).indices] for each in logits]

    def tensors(self) -> dict[str, torch.Tensor]:
        return {**self.state_dict(), "d2t": self._vocabulary.offsets, "t2d": self._vocabulary.mask}

    def config_json(self, accuracies: Sequence[Sequence[float]]) -> dict[str, Any]:
        del accuracies  # a chain, or a tree by its own probabilities
        config = self._target.config
        proposal = {"proposal_type": "greedy", "speculative_tokens": self._num_steps}
        return {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "speculators_version": "0.3.0",
            "draft_vocab_size": len(self._vocabulary.ids),
            "norm_before_residual": False,
            "target_hidden_size": config.hidden_size,
            # Files count the layers that the states enter.
            "eagle_aux_hidden_state_layer_ids": [layer + 1 for layer in self._aux],
            "transformer_layer_config": self._layer.config_json(),
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [proposal | {"verifier_accept_k": 1, "accept_tolerance": 0.0}],
                "verifier": {"name_or_path": self._target.name, "architectures": list(self._target.class_names)},
            },
        }

    def _all_logits(self, sequences: Sequence[Sequenced], places: Places, num_steps: int) -> list[torch.Tensor]:
        """Per step [R, D]."""
        lengths = [len(sequence.token_ids) for sequence in sequences]
        tokens = torch.cat([sequence.token_ids for sequence in sequences])  # [T]
        embedded = self._target.embedding[tokens]  # [T, H]
        joined = torch.cat([torch.cat([s.states[layer] for layer in self._aux], dim=-1) for s in sequences])  # [T, 3H]
        first = Entries(lengths, places.starts, places.rows, 0)
        # The entry of a conversation's last token has no next one; no place sees it.
        state, seen = self._layer(self.fc(joined.float()).float(), embedded.roll(-1, dims=0), first, [])
        logits = [self.lm_head(self.norm(state))]  # of state [R, H]
        memory: list[KeysAndValues] = [seen]
        for step in range(1, num_steps):
            next_rows, _ = places.ahead(step + 1)
            state, seen = self._layer(state, embedded[next_rows], first.behind(step), memory)
            logits.append(self.lm_head(self.norm(state)))
            memory.append(seen)
        return logits
