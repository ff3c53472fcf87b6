"""Keys of `tokenloom eval`, and what is to be run by them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from tokenloom.compose import ComposedConfig
from tokenloom.errors import ConfigError, did_you_mean
from tokenloom.evaluation.evaluate import TASKS, EvaluationPlan
from tokenloom.evaluation.intervals import Bootstrap
from tokenloom.evaluation.multiple_choice import read_questions
from tokenloom.evaluation.retrieval import RetrievalPlan
from tokenloom.evaluation.speed import SpeedPlan
from tokenloom.evaluation.texts import read_text
from tokenloom.evaluation.windows import WindowPlan
from tokenloom.settings_base import Settings, UserPath

__all__ = ["FILE_KEYS", "EvalCompareSettings", "EvalSettings", "check_tasks", "evaluation_plan"]

FILE_KEYS = ("text", "questions", "output", "plot")
"""Keys that name files."""

_KEYS_OF: Mapping[str, Sequence[str]] = {
    "perplexity": ("text", "window", "stride", "num_windows"),
    "multiple_choice": ("questions", "choice_delimiter"),
    "retrieval": ("lengths", "depths", "trials"),
}
_SPEED_KEYS = ("speed_prompt_tokens", "speed_output_tokens", "repetitions")


class EvalSettings(Settings):
    """Keys of `tokenloom eval`."""

    text: UserPath | None = Field(
        default=None, description="Text file for perplexity; null takes Python's help topics."
    )
    window: Annotated[int, Field(ge=2)] = Field(default=2048, description="Tokens of a window of the text.")
    stride: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Tokens from one window to the next; null: as long as a window, none overlap."
    )
    num_windows: Annotated[int, Field(ge=1)] | None = Field(
        default=10, description="Only the first so many windows; null for all of the text."
    )
    questions: UserPath | None = Field(
        default=None, description='JSON lines of {"context": text, "choices": [text, ...], "answer": index}.'
    )
    choice_delimiter: str = Field(default=" ", description="Text between a context and its choices.")
    lengths: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = Field(
        default=(512, 1024, 2048), description="Prompt tokens of retrieval."
    )
    depths: Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=1)] = Field(
        default=(0.1, 0.3, 0.5, 0.7, 0.9), description="Where retrieval hides its sentence: 0 begin, 1 end."
    )
    trials: Annotated[int, Field(ge=1)] = Field(default=2, description="Prompts of each length and depth.")
    resamples: Annotated[int, Field(ge=100)] = Field(default=1000, description="Draws of the bootstrap for intervals.")
    seed: Annotated[int, Field(ge=0)] = Field(default=0, description="Seed of the bootstrap and of generated prompts.")
    output: UserPath | None = Field(default=None, description="File for the result as JSON.")


class EvalCompareSettings(EvalSettings):
    """Keys of `tokenloom eval compare`."""

    speed: bool = Field(default=True, description="Also time a request that runs alone.")
    speed_prompt_tokens: Annotated[int, Field(ge=1)] = Field(default=512, description="Prompt of the timed request.")
    speed_output_tokens: Annotated[int, Field(ge=2)] = Field(default=64, description="Output of the timed request.")
    repetitions: Annotated[int, Field(ge=1)] = Field(default=3, description="Timed runs; medians are reported.")
    plot: UserPath | None = Field(default=None, description="File for a plot (.png, .svg or .pdf); needs matplotlib.")


def check_tasks(words: Sequence[str], config: ComposedConfig) -> tuple[str, ...]:
    """The tasks that words name, perplexity if there are none, in the order of `TASKS`.

    Raises:
        ConfigError: a word is no task, a key is set that no chosen task reads, or the executor runs no model.
    """
    for word in words:
        if word not in TASKS:
            near = did_you_mean(word, (*TASKS, "compare"))
            raise ConfigError(f"there is no task {word!r}.{near} Tasks: {', '.join(TASKS)}")
    if config.engine.executor.name == "simulated":
        raise ConfigError("executor=simulated runs no model, so there is nothing to judge; choose executor=local")
    tasks = tuple(task for task in TASKS if task in (words or TASKS[:1]))
    for task, keys in _KEYS_OF.items():
        if task not in tasks:
            _refuse_set(config, keys, f"only of the task {task}; leave it out, or add the word {task}")
    if isinstance(config.extras, EvalCompareSettings) and not config.extras.speed:
        _refuse_set(config, _SPEED_KEYS, "of no meaning with speed=false; leave it out")
    if "multiple_choice" in tasks and config.extras_of(EvalSettings).questions is None:
        raise ConfigError("the task multiple_choice needs questions=FILE")
    return tasks


def _refuse_set(config: ComposedConfig, keys: Collection[str], reason: str) -> None:
    for key in keys:
        is_set = any(
            source.startswith("override ") for name, source in config.sources.items() if name.split(".")[0] == key
        )
        if is_set:
            raise ConfigError(f"{key}: {reason}")


def evaluation_plan(settings: EvalSettings, tasks: Collection[str]) -> EvaluationPlan:
    """Reads the files, and says what to run.

    Raises:
        ConfigError: a file cannot be read, or is not what it should be; names line and field.
    """
    speed = None
    if isinstance(settings, EvalCompareSettings) and settings.speed:
        speed = SpeedPlan(
            settings.speed_prompt_tokens, settings.speed_output_tokens, settings.repetitions, settings.seed
        )
    questions = None
    if "multiple_choice" in tasks and settings.questions is not None:
        questions = tuple(read_questions(Path(settings.questions)))
    retrieval = RetrievalPlan(settings.lengths, settings.depths, settings.trials, settings.seed)
    path = None if settings.text is None else Path(settings.text)
    return EvaluationPlan(
        text=read_text(path) if "perplexity" in tasks else None,
        window_plan=WindowPlan(settings.window, settings.stride or settings.window, settings.num_windows),
        questions=questions,
        delimiter=settings.choice_delimiter,
        retrieval=retrieval if "retrieval" in tasks else None,
        speed=speed,
        bootstrap=Bootstrap(settings.resamples, settings.seed),
    )
