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
from tokenloom.drafter_training.distillation import Distillation
from tokenloom.drafter_training.eagle3_network import Eagle3Network
from tokenloom.drafter_training.medusa_network import MedusaNetwork
from tokenloom.drafter_training.target import Target
from tokenloom.drafter_training.trainable_head import Lesson, TrainableHead, places_of
from tokenloom.drafter_training.training_loop import Progress, TrainingPlan, train
from tokenloom.errors import ConfigError
from tokenloom.models.causal_lm import FINAL_STATE

PLAN = TrainingPlan(
    epochs=4, minutes=None, batch_tokens=400, learning_rate=3e-3, precision="float32", seed=0, save_every=1
)

ANSWERS = Lesson(num_drafts=2, prompt_weight=0.0)
"""Both drafts, in answers only."""


def build(kind: str, target: Target) -> TrainableHead:
    torch.manual_seed(0)
    network = Eagle3Network if kind == "eagle3" else MedusaNetwork
    return network(target, vocabulary_of(target), 2)


@torch.no_grad()
def loss_of(head: TrainableHead, corpus: Corpus) -> float:
    """Over all drafts and all that it is trained on."""
    sequences = [corpus.load(index, head.state_layers, CPU) for index in corpus.training]
    return sum(map(float, head.losses(sequences, ANSWERS)))


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


@pytest.mark.parametrize("kind", ["medusa", "eagle3"])
def test_places_in_prompts_count_by_their_weight(kind: str, target: Target, corpus: Corpus) -> None:
    """The loss with a weight is the mean over both kinds of places, so weighted; 1 makes a prompt of an answer."""
    head = build(kind, target)
    sequence = corpus.load(corpus.training[0], head.state_layers, CPU)
    answers = places_of([sequence])
    everything = replace(sequence, num_prompt_tokens=1)
    with torch.no_grad():
        (alone,), (light,), (even,), (whole,) = (
            head.losses([each], Lesson(1, weight))
            for each, weight in ((sequence, 0.0), (sequence, 0.25), (sequence, 1.0), (everything, 0.0))
        )
        places = places_of([sequence], 0.25)
    assert even.item() == pytest.approx(whole.item(), rel=1e-5)
    assert places.starts == (0,)
    assert places.rows[-len(answers.rows) :].tolist() == answers.rows.tolist()
    assert set(places.weights[: -len(answers.rows)].tolist()) == {0.25}
    assert set(places.weights[-len(answers.rows) :].tolist()) == {1.0}
    assert min(alone.item(), even.item()) < light.item() < max(alone.item(), even.item())


def test_a_capped_target_teaches_what_it_says(target: Target, corpus: Corpus) -> None:
    """The loss of a head that says the capped logits is the entropy of the capped distribution."""
    capped = replace(target, config=replace(target.config, final_soft_cap=0.5))
    vocabulary = vocabulary_of(capped)
    sequence = corpus.load(corpus.training[0], (FINAL_STATE,), CPU)
    places = places_of([sequence])
    states = sequence.states[FINAL_STATE][places.ahead(1)[0]]
    logits = 0.5 * ((states @ capped.head[vocabulary.ids].T) / 0.5).tanh()
    is_taught = vocabulary.mask[sequence.token_ids[places.ahead(2)[0]]]
    entropies = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
    rows, cap = capped.head[vocabulary.ids], capped.config.final_soft_cap
    loss = Distillation([sequence], places, vocabulary, rows, cap).loss(logits, 0)
    assert loss.item() == pytest.approx(entropies[is_taught].mean().item(), rel=1e-5)


def test_later_drafts_join_in_as_the_training_goes_on(target: Target, corpus: Corpus, tmp_path: Path) -> None:
    seen: list[int] = []
    plan = replace(PLAN, epochs=6, growth=0.5)
    train(
        build("eagle3", target),
        corpus,
        plan,
        tmp_path / "run.pt",
        VirtualClock(),
        lambda at: seen.append(len(at.losses)),
    )
    assert seen == [1 + (2 * step >= len(seen)) for step in range(len(seen))]
    assert set(seen) == {1, 2}


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

    def losses(self, sequences: Sequence[Sequenced], lesson: Lesson) -> list[torch.Tensor]:
        raise NotImplementedError

    def guesses(self, sequences: Sequence[Sequenced], num_ranks: int) -> list[torch.Tensor]:
        (sequence,) = sequences
        said = (sequence.states[FINAL_STATE] @ self._target.head.T).argmax(dim=-1)
        places = places_of(sequences)
        first, second = (said[places.ahead(draft + 1)[0]] for draft in range(2))
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
