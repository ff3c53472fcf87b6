"""Multiple choice by log-likelihood: the continuation that a model finds likeliest is its answer.

Source: EleutherAI's lm-evaluation-harness, tasks of the output type `multiple_choice`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, final

from pydantic import Field

from tokenloom.errors import ConfigError
from tokenloom.evaluation.intervals import Bootstrap
from tokenloom.evaluation.prompt_scores import check_length, score_prompts
from tokenloom.llm import LLM
from tokenloom.simulation.workload_lines import WorkloadLine, parse_line, read_lines
from tokenloom.text.tokenizer import Tokenizer

__all__ = ["Question", "answer_questions", "choice_figures", "encode_choice", "read_questions"]

_QUESTIONS_AT_ONCE = 16


@final
class Question(WorkloadLine):
    """One line of a file of questions."""

    context: str
    choices: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=2)]
    answer: Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class _Choice:
    """A choice behind its context: where its own tokens begin."""

    token_ids: list[int]
    num_context: int


def read_questions(path: Path) -> list[Question]:
    """Reads JSON lines of {"context": text, "choices": [text, ...], "answer": index}.

    Raises:
        ConfigError: the file cannot be read or has no questions; names the line and what is wrong.
    """
    questions: list[Question] = []
    for number, text in read_lines(path, "questions"):
        question = parse_line(path, number, text, Question, "questions")
        if question.answer >= len(question.choices):
            raise ConfigError(
                f"questions={path}: line {number}: answer={question.answer}, but there are {len(question.choices)} "
                "choices; the first one is 0"
            )
        questions.append(question)
    if not questions:
        raise ConfigError(
            f'questions={path} has none; expected lines of {{"context": text, "choices": [text, ...], "answer": index}}'
        )
    return questions


def encode_choice(tokenizer: Tokenizer, context: str, continuation: str) -> tuple[list[int], int]:
    """Token ids of both, and how many of them are the context's.

    Both are encoded as one text, so that a token is what it would be there. White space at the end of the context goes
    to the continuation, where tokenizers attach it. An empty context is the token that begins a text, or else the one
    that ends one.

    Raises:
        ConfigError: the context is empty and the tokenizer has neither, or no token is left for the continuation.
    """
    stripped = context.rstrip()
    continuation = context[len(stripped) :] + continuation
    context_ids = tokenizer.encode(stripped)
    if context_ids:
        token_ids = tokenizer.encode(stripped + continuation)
    else:
        context_ids = [*([] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]), *tokenizer.eos_token_ids][
            :1
        ]
        if not context_ids:
            raise ConfigError("an empty context needs a tokenizer with a token that begins or ends a text; give one")
        token_ids = [*context_ids, *tokenizer.encode(continuation, add_special_tokens=False)]
    if len(token_ids) <= len(context_ids):
        raise ConfigError(f"{continuation!r} has no token of its own behind {stripped[-40:]!r}; write the choice anew")
    return token_ids, len(context_ids)


def answer_questions(
    llm: LLM, questions: Sequence[Question], delimiter: str, progress: Callable[[int, int], None]
) -> list[list[float]]:
    """The summed log-likelihood, nats, of each choice of each question.

    Args:
        llm: the model.
        questions: all have two choices at least.
        delimiter: text between context and choice.
        progress: told (questions done, questions in all).
    """
    encoded = [
        [_Choice(*encode_choice(llm.tokenizer, question.context, delimiter + choice)) for choice in question.choices]
        for question in questions
    ]
    longest = max(len(choice.token_ids) for choices in encoded for choice in choices)
    check_length(llm, longest, "the longest question")
    found: list[list[float]] = []
    for first in range(0, len(encoded), _QUESTIONS_AT_ONCE):
        group = encoded[first : first + _QUESTIONS_AT_ONCE]
        flat = [choice for choices in group for choice in choices]
        scores = iter(score_prompts(llm, [choice.token_ids for choice in flat]))
        for choices in group:
            own = zip(choices, itertools.islice(scores, len(choices)), strict=True)
            found.append([math.fsum(logprobs[choice.num_context - 1 :]) for choice, logprobs in own])
        progress(len(found), len(encoded))
    return found


def choice_figures(
    questions: Sequence[Question], likelihoods: Sequence[Sequence[float]], bootstrap: Bootstrap
) -> dict[str, Any]:
    """Accuracies, with intervals over questions.

    Returns:
        - acc: share of questions whose right choice has the greatest log-likelihood; of equal ones the first counts.
        - acc_norm: the same where each is divided by the number of characters of its choice, delimiter left out.
        - acc_stderr, acc_norm_stderr: sample standard deviation over the root of the number; None of one question.
        - num_questions; log_likelihoods: of each choice of each question.
    """
    figures: dict[str, Any] = {}
    for name, is_normed in (("acc", False), ("acc_norm", True)):
        right = [
            float(_best(own, question.choices if is_normed else None) == question.answer)
            for question, own in zip(questions, likelihoods, strict=True)
        ]
        figures[name] = sum(right) / len(right)
        figures[f"{name}_interval"] = bootstrap.interval(right, [1.0] * len(right))
        figures[f"{name}_stderr"] = _stderr(right)
    return {**figures, "num_questions": len(questions), "log_likelihoods": [list(own) for own in likelihoods]}


def _best(likelihoods: Sequence[float], choices: Sequence[str] | None) -> int:
    lengths = [1] * len(likelihoods) if choices is None else [len(choice) for choice in choices]
    values = [value / length for value, length in zip(likelihoods, lengths, strict=True)]
    return values.index(max(values))


def _stderr(right: Sequence[float]) -> float | None:
    if len(right) < 2:
        return None
    mean = sum(right) / len(right)
    return math.sqrt(sum((value - mean) ** 2 for value in right) / (len(right) - 1) / len(right))
