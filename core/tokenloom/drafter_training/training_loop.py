"""Trains a head: AdamW over batches of conversations, until epochs or minutes are over; can be gone on with.

The order of batches follows from the seed and the number of the step alone, so that a run that was interrupted ends as
one that was not, unless time decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

import torch

from tokenloom.clock import Clock
from tokenloom.drafter_training.corpus import Corpus
from tokenloom.drafter_training.trainable_head import Lesson, TrainableHead
from tokenloom.errors import ConfigError

__all__ = ["Progress", "TrainingPlan", "train"]

_WARM_UP, _FALL, _LAST_RATE = 0.02, 0.7, 0.02
_BETAS, _MAX_NORM = (0.9, 0.95), 1.0
_STEP_WEIGHT = 0.8


@final
@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How to train.

    Attributes:
        epochs: how often each conversation is seen, at most.
        minutes: time for all of it, at most; None for no limit. The learning rate falls to its end within either.
        batch_tokens: tokens of conversations in one step.
        learning_rate: the highest.
        precision: of matrix products; weights and their updates are float32.
        seed: of the order.
        prompt_weight: how much a token of a prompt counts, where one of an answer counts 1.
        growth: share of the run by whose end all drafts are trained; it begins with the first one only.
        save_every: steps between checkpoints.
    """

    epochs: int
    minutes: float | None
    batch_tokens: int
    learning_rate: float
    precision: Literal["bfloat16", "float32"]
    seed: int
    prompt_weight: float = 0.5
    growth: float = 0.6
    save_every: int = 50


@final
@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands: steps done and in all, time spent, and the loss of each draft in the last step."""

    step: int
    num_steps: int
    elapsed_s: float
    losses: tuple[float, ...]


def train(
    head: TrainableHead,
    corpus: Corpus,
    plan: TrainingPlan,
    checkpoint: Path,
    clock: Clock,
    report: Callable[[Progress], None],
) -> Progress:
    """Trains `head` in place; goes on from `checkpoint` if it is there, and keeps it up to date.

    Args:
        head: on the device where it is to be trained.
        corpus: what it learns from.
        plan: how.
        checkpoint: file for weights, optimizer state, and where the run stands.
        clock: measures the time.
        report: told after every step.

    Raises:
        ConfigError: the checkpoint is that of another head.
    """
    run = _Run(head, corpus, plan, checkpoint)
    start_s = clock.now() - run.elapsed_s
    last = Progress(run.step, run.num_steps, run.elapsed_s, ())
    for batch in run.batches_left():
        share = run.share_done(clock.now() - start_s)
        if share >= 1.0:
            break
        lesson = Lesson(_num_drafts(share, plan.growth, head.num_drafts), plan.prompt_weight)
        losses = run.take_step(batch, lesson, _rate(share) * plan.learning_rate)
        last = Progress(run.step, run.num_steps, clock.now() - start_s, losses)
        if run.step % plan.save_every == 0:
            run.save(last.elapsed_s)
        report(last)
    run.save(clock.now() - start_s)
    return last


def _rate(share: float) -> float:
    """The learning rate, as a share of the highest, when this share of the run is done."""
    if share < _WARM_UP:
        return max(share, 1e-3) / _WARM_UP
    falling = min(1.0, (1.0 - share) / (1.0 - _FALL))
    return _LAST_RATE + (1.0 - _LAST_RATE) * falling


def _num_drafts(share: float, growth: float, most: int) -> int:
    """Drafts that are trained when this share of the run is done: later ones need a first one that is right."""
    return most if share >= growth else 1 + int((most - 1) * share / growth)


@final
class _Run:
    """One run: where it stands, and how it takes a step."""

    def __init__(self, head: TrainableHead, corpus: Corpus, plan: TrainingPlan, checkpoint: Path) -> None:
        self._head, self._corpus, self._plan, self._checkpoint = head, corpus, plan, checkpoint
        self._device = next(head.parameters()).device
        self._optimizer = torch.optim.AdamW(
            head.parameters(), lr=plan.learning_rate, betas=_BETAS, weight_decay=0.0, fused=True
        )
        self._epochs = [_batches(corpus, plan, epoch) for epoch in range(plan.epochs)]
        self.step, self.elapsed_s = 0, 0.0
        if checkpoint.exists():
            self._resume()

    @property
    def num_steps(self) -> int:
        """Of the whole run, if time allows."""
        return sum(map(len, self._epochs))

    def batches_left(self) -> Iterator[list[int]]:
        """The batches from this step on."""
        batches = [batch for epoch in self._epochs for batch in epoch]
        yield from batches[self.step :]

    def share_done(self, elapsed_s: float) -> float:
        """How much of the run is over, by steps or by time, whichever is more."""
        by_time = 0.0 if self._plan.minutes is None else elapsed_s / (60.0 * self._plan.minutes)
        return max(by_time, self.step / self.num_steps)

    def take_step(self, batch: Sequence[int], lesson: Lesson, learning_rate: float) -> tuple[float, ...]:
        """One update; returns the loss of each draft before it."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        sequences = [self._corpus.load(index, self._head.state_layers, self._device) for index in batch]
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._plan.precision == "bfloat16"):
            losses = self._head.losses(sequences, lesson)
        weights = [_STEP_WEIGHT**draft for draft in range(len(losses))]
        total = torch.stack([weight * loss for weight, loss in zip(weights, losses, strict=True)]).sum()
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(total)
        torch.nn.utils.clip_grad_norm_(self._head.parameters(), _MAX_NORM)
        self._optimizer.step()
        self.step += 1
        return tuple(loss.item() for loss in losses)

    def save(self, elapsed_s: float) -> None:
        """Writes the checkpoint, or, if interrupted, leaves the one before."""
        self.elapsed_s = elapsed_s
        scratch = self._checkpoint.with_suffix(".partial")
        state = {
            "head": self._head.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "step": self.step,
            "elapsed_s": elapsed_s,
        }
        torch.save(state, scratch)
        scratch.replace(self._checkpoint)

    def _resume(self) -> None:
        state = torch.load(self._checkpoint, map_location=self._device, weights_only=True)
        try:
            self._head.load_state_dict(state["head"])
            self._optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise ConfigError(
                f"{self._checkpoint} is no checkpoint of such a head: {error}; choose another output=, or delete it"
            ) from error
        self.step, self.elapsed_s = int(state["step"]), float(state["elapsed_s"])


def _batches(corpus: Corpus, plan: TrainingPlan, epoch: int) -> list[list[int]]:
    """One epoch's conversations in random order, in batches of about `batch_tokens`."""
    generator = torch.Generator().manual_seed(plan.seed * 1_000_003 + epoch)
    order = torch.randperm(len(corpus.training), generator=generator).tolist()
    batches: list[list[int]] = [[]]
    num_tokens = 0
    for place in order:
        index = corpus.training[place]
        own = corpus.num_tokens(index)
        if batches[-1] and num_tokens + own > plan.batch_tokens:
            batches.append([])
            num_tokens = 0
        batches[-1].append(index)
        num_tokens += own
    return [batch for batch in batches if batch]
