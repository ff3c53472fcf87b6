"""Training: the loss falls, an interrupted run ends as a whole one, and what is measured is what was drafted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import pytest
import torch

from tests.core.drafter_training.tiny_corpus import CPU, vocabulary_of
from tokenloom.clock import VirtualClock
from tokenloom.drafter_training.acceptance import measure_acceptance
from tokenloom.drafter_training.corpus import Corpus, Sequenced
from tokenloom.drafter_training.eagle3_network import Eagle3Network
from tokenloom.drafter_training.medusa_network import MedusaNetwork
from tokenloom.drafter_training.target import Target
from tokenloom.drafter_training.trainable_head import TrainableHead, answers_of
from tokenloom.drafter_training.training_loop import Progress, TrainingPlan, train
from tokenloom.errors import ConfigError
from tokenloom.models.causal_lm import FINAL_STATE

PLAN = TrainingPlan(
    epochs=4, minutes=None, batch_tokens=400, learning_rate=3e-3, precision="float32", seed=0, save_every=1
)


def build(kind: str, target: Target) -> TrainableHead:
    torch.manual_seed(0)
    network = Eagle3Network if kind == "eagle3" else MedusaNetwork
    return network(target, vocabulary_of(target), 2)


@torch.no_grad()
def loss_of(head: TrainableHead, corpus: Corpus) -> float:
    """Over all drafts and all that it is trained on."""
    return sum(map(float, head.losses([corpus.load(index, head.state_layers, CPU) for index in corpus.training])))


@pytest.mark.parametrize("kind", ["medusa", "eagle3"])
def test_the_loss_falls_and_a_resumed_run_ends_as_a_whole_one(
    kind: str, target: Target, corpus: Corpus, tmp_path: Path
) -> None:
    seen: list[Progress] = []
    whole = build(kind, target)
    before = loss_of(whole, corpus)
    end = train(whole, corpus, PLAN, tmp_path / "whole.pt", VirtualClock(), seen.append)
    assert end.step == end.num_steps == len(seen) > 4
    assert loss_of(whole, corpus) < before

    def interrupt(at: Progress) -> None:
        if at.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(build(kind, target), corpus, PLAN, tmp_path / "parts.pt", VirtualClock(), interrupt)
    resumed = build(kind, target)
    train(resumed, corpus, PLAN, tmp_path / "parts.pt", VirtualClock(), seen.append)
    assert seen[end.num_steps].step == 4
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_minutes_end_a_run(target: Target, corpus: Corpus, tmp_path: Path) -> None:
    clock = VirtualClock()
    plan = replace(PLAN, minutes=1.0)
    end = train(
        build("medusa", target), corpus, plan, tmp_path / "run.pt", clock, lambda _progress: clock.advance(25.0)
    )
    assert (end.step, end.elapsed_s) == (3, 50.0)
    again = train(build("medusa", target), corpus, plan, tmp_path / "run.pt", clock, lambda _progress: None)
    assert again.step == 3


def test_a_checkpoint_of_another_head_is_refused(target: Target, corpus: Corpus, tmp_path: Path) -> None:
    train(build("medusa", target), corpus, replace(PLAN, epochs=1), tmp_path / "run.pt", VirtualClock(), lambda _: None)
    with pytest.raises(ConfigError, match="no checkpoint of such a head"):
        train(build("eagle3", target), corpus, PLAN, tmp_path / "run.pt", VirtualClock(), lambda _: None)


@final
class _Knowing(TrainableHead):
    """Its first draft is always right, its second one where the target's token is even, else second best."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target

    @property
    def state_layers(self) -> tuple[int, ...]:
        return (FINAL_STATE,)

    @property
    def num_drafts(self) -> int:
        return 2

    def losses(self, sequences: Sequence[Sequenced]) -> list[torch.Tensor]:
        raise NotImplementedError

    def guesses(self, sequences: Sequence[Sequenced], num_ranks: int) -> list[torch.Tensor]:
        (sequence,) = sequences
        said = (sequence.states[FINAL_STATE] @ self._target.head.T).argmax(dim=-1)
        answers = answers_of(sequences)
        first, second = (said[answers.ahead(draft + 1)[0]] for draft in range(2))
        odd = second % 2 == 1
        wrong = torch.full_like(second, -1)
        pairs = [torch.stack([first, wrong], 1), torch.stack([second.where(~odd, wrong), second.where(odd, wrong)], 1)]
        return [torch.cat([pair, wrong[:, None].expand(-1, num_ranks - 2)], 1) for pair in pairs]

    def tensors(self) -> dict[str, torch.Tensor]:
        return {}

    def config_json(self, accuracies: Sequence[Sequence[float]]) -> dict[str, Any]:
        return {"accuracies": accuracies}


def test_acceptance_is_the_share_of_right_guesses(target: Target, corpus: Corpus) -> None:
    measured = measure_acceptance(_Knowing(target), target, corpus, lambda *_: None)
    assert measured.by_position[0] == 1.0
    share = measured.by_position[1]
    assert 0.0 < share < 1.0
    assert measured.by_rank[1][:3] == pytest.approx((share, 1.0 - share, 0.0))
    assert measured.tokens_per_step == pytest.approx(2.0 + share)
    assert measured.num_places > 10
