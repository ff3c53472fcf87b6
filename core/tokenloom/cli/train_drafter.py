"""`tokenloom train-drafter`: trains a drafter's head for a model, on what the model itself says."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import click
from pydantic import Field
from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import TextColumn, TimeElapsedColumn

from tokenloom.cli.config_arguments import config_dir_option, overrides_argument
from tokenloom.cli.console import print_table
from tokenloom.cli.task_progress import task_progress
from tokenloom.clock import MonotonicClock
from tokenloom.compose import ComposedConfig, compose_config
from tokenloom.drafter_training.acceptance import Acceptance
from tokenloom.drafter_training.conversations import ConversationPlan
from tokenloom.drafter_training.training_job import HeadKind, TrainingJob, run_training
from tokenloom.drafter_training.training_loop import Progress, TrainingPlan
from tokenloom.errors import ConfigError
from tokenloom.settings_base import Settings, UserPath

__all__ = ["TrainDrafterSettings", "train_drafter"]

_NEEDED = {"cache": "none", "spec_decode": "none", "executor": "local"}
_LEARNING_RATE = {"medusa": 2e-3, "eagle3": 1e-3}
_LINES = 20
"""Where there is no terminal, progress is a line for every so many steps."""


class TrainDrafterSettings(Settings):
    """Keys of `tokenloom train-drafter`."""

    kind: HeadKind = Field(description="Drafter to train a head for: medusa or eagle3.")
    output: UserPath = Field(
        description="Folder for the head; training goes on from the checkpoint that it leaves there."
    )
    data: UserPath | None = Field(default=None, description="Folder of the training data; null: data in output.")
    conversations: Annotated[int, Field(ge=1)] = Field(
        default=2048, description="Questions and answers to generate, rounded up to a multiple of 256."
    )
    answer_tokens: Annotated[int, Field(ge=8)] = Field(default=192, description="Most tokens of an answer.")
    greedy_share: Annotated[float, Field(ge=0, le=1)] = Field(default=0.75, description="Share of greedy answers.")
    temperature: Annotated[float, Field(gt=0, le=2)] = Field(default=0.7, description="Of the other answers.")
    drafts: Annotated[int, Field(ge=1, le=8)] = Field(default=3, description="Drafts in a row to train for.")
    draft_vocab_size: Annotated[int, Field(ge=16)] = Field(
        default=4096, description="How many of the most frequent tokens can be drafted."
    )
    minutes: Annotated[float, Field(gt=0)] | None = Field(
        default=45.0, description="Most minutes of training, data apart; null sets no limit."
    )
    epochs: Annotated[int, Field(ge=1)] = Field(default=10, description="Most often that an answer is learnt from.")
    batch_tokens: Annotated[int, Field(ge=64)] = Field(default=2048, description="Tokens in one step of training.")
    max_tokens: Annotated[int, Field(ge=64)] = Field(
        default=1024, description="Longer conversations are cut off there."
    )
    learning_rate: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None, description="Highest learning rate; null: 2e-3 for medusa, 1e-3 for eagle3."
    )
    prompt_weight: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.5, description="How much a token of a prompt counts in training, where one of an answer counts 1."
    )
    growth: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.6, description="Share of the training by whose end all drafts are trained; it begins with the first."
    )
    init: UserPath | None = Field(
        default=None, description="Folder of a head to begin with, for the same model; null: none."
    )
    precision: Literal["bfloat16", "float32"] = Field(
        default="bfloat16", description="Of matrix products in training; weights are float32."
    )
    seed: int = Field(default=0, description="Of questions, answers, first weights and order.")


@click.command("train-drafter")
@overrides_argument
@config_dir_option
def train_drafter(overrides: tuple[str, ...], config_dir: Path | None) -> None:
    """Train a drafter's head for a model, on questions that it asks itself.

    For example: tokenloom train-drafter kind=eagle3 output=head minutes=45

    Then: tokenloom bench spec prompts=FILE spec_decode=eagle3 spec_decode.source=head

    What is interrupted goes on where it stood when the same command is given again.
    """
    config = compose_config(("cache=none", *overrides), config_dir=config_dir, command=TrainDrafterSettings)
    settings = config.extras_of(TrainDrafterSettings)
    _check(config)
    with task_progress() as progress, _training_bar() as report:
        acceptance = run_training(config, _job(settings, overrides), MonotonicClock(), progress, report)
    _print(acceptance)
    click.echo(f"\nwrote {settings.output}\n\nNext:\n  {_next(settings)}")


def _check(config: ComposedConfig) -> None:
    for choice in config.engine.choices():
        needed = _NEEDED.get(choice.kind, choice.name)
        if choice.name != needed:
            raise ConfigError(
                f"{choice.kind}={choice.name}: train-drafter hears the states of every token from the plain model; "
                f"leave {choice.kind}= out ({needed})"
            )


def _job(settings: TrainDrafterSettings, overrides: tuple[str, ...]) -> TrainingJob:
    output = Path(settings.output)
    return TrainingJob(
        kind=settings.kind,
        output=output,
        data=output / "data" if settings.data is None else Path(settings.data),
        num_conversations=settings.conversations,
        conversations=ConversationPlan(
            settings.seed, settings.answer_tokens, settings.greedy_share, settings.temperature
        ),
        max_tokens=settings.max_tokens,
        num_drafts=settings.drafts,
        draft_vocab_size=settings.draft_vocab_size,
        training=TrainingPlan(
            settings.epochs,
            settings.minutes,
            settings.batch_tokens,
            settings.learning_rate or _LEARNING_RATE[settings.kind],
            settings.precision,
            settings.seed,
            settings.prompt_weight,
            settings.growth,
        ),
        init=None if settings.init is None else Path(settings.init),
        command=_command(overrides),
    )


def _command(overrides: tuple[str, ...]) -> str:
    """As it can be repeated elsewhere: without the places of output, data and the head to begin with."""
    words = [_without_place(word) for word in overrides if not word.startswith(("output=", "data="))]
    return shlex.join(["tokenloom", "train-drafter", *words, "output=FOLDER"])


def _without_place(word: str) -> str:
    key, _, value = word.partition("=")
    if key == "init":
        return "init=HEAD"
    is_place = key in ("model", "model.source") and value.startswith(("/", ".", "~"))
    return f"{key}=MODEL" if is_place else word


@contextmanager
def _training_bar() -> Iterator[Callable[[Progress], None]]:
    """Yields what to tell each step: a bar on a terminal, else now and then a line."""
    is_shown = sys.stderr.isatty()
    columns = (TextColumn("training {task.description}"), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True), disable=not is_shown) as bars:
        task = bars.add_task("")

        def report(at: Progress) -> None:
            losses = " ".join(f"{loss:.3f}" for loss in at.losses)
            line = f"step {at.step} of {at.num_steps}, {at.elapsed_s / 60:.1f} min, loss by draft {losses}"
            bars.update(task, description=line)
            if not is_shown and at.step % _LINES == 0:
                click.echo(line, err=True)

        yield report


def _print(acceptance: Acceptance) -> None:
    rows = [
        (str(number), f"{rate:.1%}", f"{shares[0]:.1%}", f"{sum(shares[:3]):.1%}")
        for number, (rate, shares) in enumerate(zip(acceptance.by_position, acceptance.by_rank, strict=True), 1)
    ]
    print_table(("draft", "right if those before are", "right at all", "among its best three"), rows)
    click.echo(f"{acceptance.tokens_per_step:.2f} tokens per step with all drafts, at {acceptance.num_places} places")


def _next(settings: TrainDrafterSettings) -> str:
    source = shlex.quote(f"spec_decode.source={settings.output}")
    return f"tokenloom generate 'What is a lighthouse?' spec_decode={settings.kind} {source}"
