"""Multiple choice: log-likelihoods are the model's, accuracies those of lm-evaluation-harness's definition."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.models.llama_formulas import reference_logits
from tests.tiny_model import write_tiny_llama
from tokenloom.errors import ConfigError
from tokenloom.evaluation.intervals import Bootstrap
from tokenloom.evaluation.multiple_choice import (
    Question,
    answer_questions,
    choice_figures,
    encode_choice,
    read_questions,
)
from tokenloom.llm import LLM


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its tokens are bytes; the one that ends a text is 3."""
    return write_tiny_llama(tmp_path_factory.mktemp("model"), with_tokenizer=True)


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    words = ["cache.num_blocks=64", "scheduler.max_num_batched_tokens=64", "engine.num_threads=1"]
    with LLM(str(model), words, dtype="float32") as found:
        yield found


def question(answer: int, *choices: str, context: str = "It is") -> Question:
    return Question(context=context, choices=list(choices), answer=answer)


def test_likelihoods_are_those_of_the_formulas(llm: LLM, model: Path) -> None:
    questions = [question(0, "a", "black cat"), question(1, "so", "x", "yes!", context="Who? "), question(0, "?", "??")]
    told: list[tuple[int, int]] = []
    found = answer_questions(llm, questions, " ", lambda *news: told.append(news))
    assert told[-1] == (3, 3)
    for one, own in zip(questions, found, strict=True):
        for choice, value in zip(one.choices, own, strict=True):
            context, whole = one.context.rstrip().encode(), f"{one.context} {choice}".encode()
            logprobs = reference_logits(model, list(whole)).log_softmax(-1)
            wanted = sum(float(logprobs[i - 1][whole[i]]) for i in range(len(context), len(whole)))
            assert value == pytest.approx(wanted, rel=1e-4)


def test_more_questions_than_run_at_once_keep_their_order(llm: LLM) -> None:
    questions = [question(0, "a", "b" * (1 + i % 3), context=f"{i}:") for i in range(35)]
    together = answer_questions(llm, questions, " ", lambda *_: None)
    alone = [answer_questions(llm, [one], " ", lambda *_: None)[0] for one in questions]
    assert together == [pytest.approx(own, abs=1e-4) for own in alone]


def test_white_space_at_the_end_of_a_context_goes_to_the_choice(llm: LLM) -> None:
    assert encode_choice(llm.tokenizer, "Who? \n", "me") == (list(b"Who? \nme"), 4)


def test_an_empty_context_is_refused_without_a_token_to_begin_with(llm: LLM) -> None:
    with pytest.raises(ConfigError, match="empty context"):
        encode_choice(llm.tokenizer, "", " me")


def test_accuracies_by_likelihood_and_by_likelihood_per_character() -> None:
    questions = [question(0, "a", "bbbb"), question(1, "a", "bbbb"), question(1, "a", "b"), question(0, "éé", "ééé")]
    likelihoods = [[-1.0, -2.0], [-1.0, -2.0], [-3.0, -3.0], [-2.0, -2.9]]
    figures = choice_figures(questions, likelihoods, Bootstrap())
    # By sum: right, wrong, wrong (of equal ones the first), right. By character: wrong, right, wrong, wrong.
    assert (figures["acc"], figures["acc_norm"]) == (0.5, 0.25)
    assert figures["acc_stderr"] == pytest.approx((4 * 0.25 / 3 / 4) ** 0.5)
    assert figures["num_questions"] == 4
    assert figures["log_likelihoods"] == likelihoods
    low, high = figures["acc_interval"]
    assert low <= 0.5 <= high


def test_questions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    lines = [
        {"context": "c", "choices": ["x", "y"], "answer": 1, "source": "mine"},
        {"context": "", "choices": ["x", "y"], "answer": 0},
    ]
    path.write_text("\n\n".join(map(json.dumps, lines)))
    assert [one.answer for one in read_questions(path)] == [1, 0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"context": "c", "choices": ["x", "y"], "answer": 2}, "line 1: answer=2, but there are 2 choices"),
        ({"context": "c", "choices": ["x"], "answer": 0}, "line 1: .*choices"),
        ({"context": "c", "choices": ["x", ""], "answer": 0}, "line 1: .*choices"),
        ({"context": "c", "answer": 0}, "line 1: .*choices"),
        ({"context": "c", "choices": ["x", "y"], "answer": "0"}, "line 1: .*answer"),
        ("text", "line 1"),
        (None, "has none"),
    ],
)
def test_faulty_questions_are_refused(tmp_path: Path, line: object, message: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text("" if line is None else json.dumps(line))
    with pytest.raises(ConfigError, match=message):
        read_questions(path)


def test_questions_that_are_too_long_are_refused(llm: LLM) -> None:
    with pytest.raises(ConfigError, match="the longest question needs prompts of 512 tokens"):
        answer_questions(llm, [question(0, "a", "b" * 506)], " ", lambda *_: None)
